"""The fixtures catch what a test leaves behind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

SHARED = f"/dev/shm/xmp-left-by-test-{os.getpid()}"
LEAVERS = {
    "process": (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1)",
        r"process \d+ \([\w-]+\): \w+: .*-c input\(\)",
    ),
    "orphan": (
        "import subprocess; subprocess.run('sleep 60 >/dev/null & true', shell=True)",
        r"process \d+ \([\w-]+\): (sleep|sh): .*sleep 60",  # "sh" until its fork has called exec
    ),
    "thread": (
        "import threading as t; t.Thread(target=t.Event().wait, daemon=True, name='late').start()",
        r"thread 'late' \(daemon=True\)",
    ),
    "descriptor": ("import os; os.pipe()", r"2 descriptor\(s\) on pipe"),
    "file": (f"open({SHARED!r}, 'w').close()", SHARED),
}


def run_test(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(TESTS / "conftest.py", folder)
    quick = "import os\nfrom tests.support import leaks\nleaks.DEADLINE = 0.3\n"
    (folder / "test_it.py").write_text(f"{quick}def test_it():\n    {body}\n")
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {**os.environ, "OMPI_COMM_WORLD_RANK": "3", "PYTHONPATH": str(TESTS.parent)}
    environment.pop("XMP_TEST_SESSION", None)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(folder)],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("kind", LEAVERS)
def test_what_a_test_leaves_fails_it_and_is_named(tmp_path: Path, kind: str) -> None:
    body, text = LEAVERS[kind]
    try:
        result = run_test(tmp_path, body)
    finally:
        Path(SHARED).unlink(missing_ok=True)
    assert result.returncode == 1, result.stdout
    assert "left behind by test_it.py::test_it" in result.stdout
    assert re.search(text, result.stdout), result.stdout


def test_a_tidy_test_passes_in_a_clean_environment(tmp_path: Path) -> None:
    result = run_test(tmp_path, "assert 'OMPI_COMM_WORLD_RANK' not in os.environ")
    assert result.returncode == 0, result.stdout


FLAGS, STATE = "tests/launcher/test_interpreter_flags.py", "tests/replica/test_state.py"


@pytest.mark.parametrize(
    ("file", "selected", "methods"),
    [
        (FLAGS, "methods", ["fork", "spawn"]),
        (FLAGS, "not methods", ["forkserver"]),
        (STATE, "methods", []),  # the contract of a room: at each change
        (STATE, "not methods", ["fork", "forkserver", "spawn"]),
    ],
)
def test_cases_of_the_other_start_methods_are_marked(
    file: str, selected: str, methods: list[str]
) -> None:
    """The lanes of each change leave them out by this mark."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", selected, file]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == (0 if methods else 5), done.stdout  # 5: no test is left
    assert sorted(set(re.findall(r"[\[-](forkserver|spawn|fork)(?=[]-])", done.stdout))) == methods
