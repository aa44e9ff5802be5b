"""The project around the code: the guide shows what runs, and the scripts do what they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = (
    "scripts/test",
    "scripts/_lane",
    "scripts/demo",
    "scripts/pictures",
    "scripts/faults",
    "scripts/publish",
    "scripts/_env.sh",
    ".ci/run",
)


def run(command: list[str], folder: Path, timeout: float = 60, **variables: str) -> str:
    """Standard output and error of ``command``, with its exit status as the last line."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    return f"{done.stdout.rstrip()}\nexit {done.returncode}"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The scripts and settings alone, where they can do no harm."""
    for name in (*SCRIPTS, "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_guide_shows_the_program_that_the_demo_runs() -> None:
    page = (ROOT / "docs/guide/first-launch.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert (ROOT / "scripts/_demo/train_torch.py").read_text() in blocks


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_plain_sh(name: str) -> None:
    assert run(["sh", "-n", name], ROOT).endswith("exit 0")
    assert name.endswith(".sh") or os.access(ROOT / name, os.X_OK)


@pytest.mark.parametrize("lane", ["xla", "torch-tpu", "libtpu", "paddle"])
def test_a_lane_without_tests_is_refused_before_anything_is_made(checkout: Path, lane: str) -> None:
    text = run(["./scripts/test", f"--{lane}", "-k", "x"], checkout)
    assert f"tests/{lane.replace('-', '_')} does not exist" in text
    assert text.endswith("exit 2")
    assert not list(checkout.glob(".venv*"))


def test_help_names_every_lane(checkout: Path) -> None:
    text = run(["./scripts/test", "--help"], checkout)
    for lane in (
        "--plain",
        "--frameworks",
        "--py310",
        "--newest",
        "--xla",
        "--torch-tpu",
        "--libtpu",
        "--paddle",
        "--colab",
        "--wheel",
        "--peers",
        "--hosts",
        "--slurm",
        "--methods",
        "--failing",
        "--failing-plain",
        "--failing-frameworks",
        "--alone",
        "--faults",
        "--docs",
        "--docs-online",
        "--ci",
        "--all",
    ):
        assert lane in text
    assert text.endswith("exit 0")


def test_what_has_a_lane_is_not_in_the_default_one() -> None:
    given = re.search(r'"-m", "(not [^"]*)"', (ROOT / "pyproject.toml").read_text())
    source = (ROOT / "scripts/test").read_text()
    elsewhere = re.search(r'^elsewhere="(.*) or alone"$', source, re.M)
    assert given
    assert elsewhere
    assert elsewhere[1].split(" or ") == given[1].removeprefix("not ").split(" and not ")
    assert 'in_a_lane="$weekly or failing or hosts or $elsewhere"' in source


def test_the_oldest_versions_are_those_of_the_project_file() -> None:
    folder = Path(sys.prefix)
    text = run(["sh", "-c", f". scripts/_env.sh; low_bounds {folder} torch ray"], ROOT)
    pinned = text.splitlines()[:-1]
    project = (ROOT / "pyproject.toml").read_text()
    assert {re.match(r"[\w-]+", line)[0] for line in pinned} == {  # type: ignore[index]
        "cloudpickle", "psutil", "torch", "ray",
    }  # fmt: skip
    for line in pinned:
        assert f'"{line.removesuffix(".*").replace("==", ">=")}' in project, line


def test_an_interpreter_that_is_too_old_is_refused(checkout: Path) -> None:
    text = run(["./scripts/test"], checkout, PYTHON="/no/such/python")
    assert "no Python 3.10 or later found as /no/such/python" in text
    assert text.endswith("exit 2")


FAKE_PYTHON = f"""#!/bin/sh
exec {sys.executable} "$@"
"""
FAKE_UV = """#!/bin/sh
echo "$@" >>uv.log
"""


def test_an_environment_is_installed_once_for_each_state_of_the_project(checkout: Path) -> None:
    programs = {".venv/bin/python": FAKE_PYTHON, ".venv-uv/bin/python": FAKE_PYTHON}
    for name, text in {**programs, ".venv-uv/bin/uv": FAKE_UV}.items():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(text)
        (checkout / name).chmod(0o755)
    for folder in ("xmp", "tests/support"):
        (checkout / folder).mkdir(parents=True)

    def installations(*requirements: str) -> int:
        command = f"set -eu; . scripts/_env.sh; install .venv {' '.join(requirements)}"
        assert run(["sh", "-c", command], checkout).endswith("exit 0")
        return len((checkout / "uv.log").read_text().splitlines())

    assert installations("torch", "-e .") == 1
    assert installations("torch", "-e .") == 1
    assert installations("jax", "-e .") == 2
    with (checkout / "pyproject.toml").open("a") as project:
        project.write("# changed\n")
    assert installations("jax", "-e .") == 3


@pytest.mark.parametrize("status", [0, 1])
def test_ci_ends_with_the_closing_line_of_pytest(checkout: Path, status: int) -> None:
    closing = "==== 7 passed, 2 skipped in 61.50s (0:01:01) ===="
    (checkout / "scripts/test").write_text(
        f"#!/bin/sh\necho '== lane: plain' >&2\necho '{closing}'\necho '== lane: xla' >&2\n"
        f"echo '=== 1 passed in 0.01s ==='\nexit {status}\n"
    )
    lines = run(["./.ci/run"], checkout).splitlines()
    assert lines[-3:] == ["xla: === 1 passed in 0.01s ===", closing, f"exit {status}"]


def test_ci_says_when_no_test_was_run(checkout: Path) -> None:
    (checkout / "scripts/test").write_text("#!/bin/sh\necho broken\nexit 3\n")
    assert run(["./.ci/run"], checkout).splitlines()[-2:] == ["no test was run", "exit 1"]


def test_this_environment_lacks_nothing_for_the_demo() -> None:
    assert run([sys.executable, "scripts/_demo/missing.py"], ROOT) == "\nexit 0"
    assert run([sys.executable, "scripts/_demo/missing.py", "--frameworks"], ROOT) == "\nexit 0"


def test_a_bare_interpreter_lacks_everything_for_the_demo() -> None:
    bare = [sys.executable, "-I", "-S"]
    text = run([*bare, "scripts/_demo/missing.py"], ROOT)
    assert text.split() == [
        *("torch==2.13.0", "jax", "scikit-learn", "matplotlib", "rich", "psutil", "-e", "."),
        *("exit", "0"),
    ]
    assert run([*bare, "scripts/_demo/missing.py", "--frameworks"], ROOT) == "\nexit 1"
    text = run([*bare, "scripts/_demo/missing.py", "--bench"], ROOT)
    assert text.count("ray[train]") == 1


@pytest.mark.slow
def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    """Its exit status is 1 if weights differ, accuracy is low, or a process is left."""
    picture = tmp_path / "made" / "demo.png"
    options = ["--nprocs", "2", "--out", str(picture)]
    text = run([sys.executable, "scripts/_demo/main.py", *options], ROOT, timeout=150)
    assert text.endswith("exit 0"), text
    assert text.startswith("About a minute on two cores, and no download")
    assert "SIGKILL" in text
    assert "0 processes left" in text
    for row in ("first call", "later call", "until the error is raised"):
        assert re.search(rf"{row}\b.*│ +\d+\.\d\d s │", text), row
    assert "dropped XRT_TPU_CONFIG" in text  # the plan for Kaggle's TPU host
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("ci", "codes", "end"),
    [("true", "1 0", 0), ("true", "1 1", 1), ("true", "2 0", 2), ("true", "0", 0), ("", "1 0", 1)],
)
def test_in_ci_what_failed_runs_once_more(tmp_path: Path, ci: str, codes: str, end: int) -> None:
    """``codes`` are pytest's exit statuses: 1 for failed tests, 2 for an interrupted run."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nset -- {codes}\n[ -e ran ] && exit $2\ntouch ran\nexit $1\n")
    python.chmod(0o755)
    script = (ROOT / "scripts/test").read_text()
    (function,) = re.findall(r"^run_tests\(\) \{.*?^\}", script, re.MULTILINE | re.DOTALL)
    source = f"say() {{ :; }}\nlane=x\n{function}\nrun_tests ./python"
    assert run(["sh", "-euc", source], tmp_path, CI=ci).endswith(f"exit {end}")


@pytest.mark.parametrize(("names", "end"), [("good torch_tpu", 0), ("bad good", 123)])
def test_lanes_run_side_by_side(tmp_path: Path, names: str, end: int) -> None:
    """All of them, also after one that fails; each prints in one piece. "alone" is the last."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/_lane", tmp_path / "scripts/_lane")
    stub = tmp_path / "scripts/test"
    stub.write_text('#!/bin/sh\necho "begin $*"; echo end; [ "$1" != --bad ]\n')
    stub.chmod(0o755)
    script = (ROOT / "scripts/test").read_text()
    both = r"^(?:side_by_side|everything)\(\) \{.*?^\}"
    functions = "\n".join(re.findall(both, script, re.MULTILINE | re.DOTALL))
    source = (
        f"test_environment() {{ :; }}\nsay() {{ :; }}\n{functions}\neverything '{names}' -k 'x y'"
    )
    text = run(["sh", "-euc", source], tmp_path)
    assert text.endswith(f"exit {end}")
    assert text.index("--alone") > max(text.index(f"--{name[:4]}") for name in names.split())
    for name in [*names.split(), "alone"]:
        flag, status = name.replace("_", "-"), int(name == "bad")
        assert f"begin --{flag} -k x y\nend\n== lane {name} ended with {status} " in text


def test_what_the_demo_imports_is_installed_for_it() -> None:
    """Its extra, its own list and what its files import agree."""
    listed = (ROOT / "scripts/_demo/missing.py").read_text()
    extra = re.search(r"^demo = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.M)
    assert extra
    for requirement in re.findall(r'"([\w-]+)', extra[1]):
        assert f'"{requirement}"' in listed, requirement
