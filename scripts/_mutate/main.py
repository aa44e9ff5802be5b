"""Draw mutations with cosmic-ray, run each against the tests of its room, and count.

A mutation is found if the tests of the room of its file fail. Those that live are printed as diffs:
each is a test that is missing, or a change without a difference.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cosmic_ray.ast import get_ast
from cosmic_ray.modules import find_modules
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).resolve().parents[2]
HIGHER = ("xmp/_hosts", "xmp/plugins")
TESTS = {
    "_words": ("plans", "project/test_reprs.py", "supervisor/test_limits.py"),
    "_rules": (
        *("supervisor/test_watch.py", "supervisor/test_limits.py"),
        *("supervisor/test_restart_rules.py", "supervisor", "launcher"),
    ),
    "_plan": ("plans", "host", "commands"),
    "_os": (
        "host",
        "project/test_log.py",
        "commands",
        "plans/test_plan_imports.py",
        "launcher",
        "report",
        "replica",
    ),
    "_payload": ("messages", "testing", "notebooks"),
    "_inside": ("replica", "frameworks", "commands"),
    "_processes/launcher": ("launcher", "template", "terminal", "report"),
    "_processes/template": ("template",),
    "_processes/supervisor": ("supervisor", "launcher", "report"),
    "_processes/replica": ("replica", "report", "terminal"),
    "_processes/terminal": ("terminal", "notebooks"),
    "_processes/output": ("output",),
    "_processes/report": ("report", "notebooks/test_errors_in_ipython.py"),
    "_processes/messages": ("messages", "supervisor", "replica"),
    "_processes/system": ("system", "supervisor", "template", "replica"),
    "_calls": ("launcher", "project", "plans"),
    "_commands": ("commands",),
    "compat": ("compat",),
    "testing": ("testing",),
}
"""The tests of each room, the likeliest first."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+::.+?)(?: - |$)", re.M)
ELSEWHERE = "xla or torch_tpu or libtpu or paddle or slurm or ray or faults or alone"
LANES = {
    "xmp/_inside/frameworks/torch_xla.py": ("xla", ".venv-xla"),
    "xmp/_inside/frameworks/torch_tpu.py": ("torch_tpu", ".venv-torch-tpu"),
}
"""Files that only programs of another lane execute: its mark and folder, its environment."""
OPERATORS = (
    *(f"core/ReplaceComparisonOperator_{a}" for a in ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt")),
    *(f"core/ReplaceComparisonOperator_{a}" for a in ("Eq_NotEq", "NotEq_Eq", "Is_IsNot")),
    *("core/ReplaceComparisonOperator_IsNot_Is", "core/ReplaceAndWithOr", "core/ReplaceOrWithAnd"),
    *("core/ReplaceUnaryOperator_Delete_Not", "core/AddNot", "core/ReplaceTrueWithFalse"),
    *("core/ReplaceFalseWithTrue", "core/ReplaceBreakWithContinue"),
)


def places() -> Iterator[tuple[Path, str, int, str]]:
    """Yield each file of the first ring, with each operator and each place where that applies.

    The last value names the place by the text of its line, which a change elsewhere does not alter.
    """
    for path in sorted(find_modules([ROOT / "xmp"])):
        name = str(path.relative_to(ROOT))
        if name.startswith(HIGHER):
            continue
        text = path.read_text()
        tree, lines = get_ast(text), text.splitlines()
        for operator_name in OPERATORS:
            operator = get_operator(operator_name)()
            starts = [at for node in walk(tree) for at, _ in operator.mutation_positions(node)]
            seen: Counter[str] = Counter()
            for occurrence, (line, _) in enumerate(starts):
                words = f"{name} {operator_name} {lines[line - 1].strip()}"
                seen[words] += 1
                yield path.relative_to(ROOT), operator_name, occurrence, f"{words} {seen[words]}"


def drawn(seed: int, count: int) -> list[tuple[Path, str, int]]:
    """Draw places: after a change of the code nearly the same ones, in the same order."""

    def lot(place: tuple[Path, str, int, str]) -> bytes:
        return hashlib.sha256(f"{seed} {place[3]}".encode()).digest()

    return [place[:3] for place in sorted(places(), key=lot)[:count]]


def walk(node: object) -> Iterator[object]:
    yield node
    for child in getattr(node, "children", ()):
        yield from walk(child)


def names_at_change(before: str, after: str) -> set[str]:
    """Return the names of the classes and functions around the line that a mutation changes."""
    lines = zip(before.splitlines(), after.splitlines(), strict=False)
    changed = next(number for number, (old, new) in enumerate(lines, 1) if old != new)
    return {
        node.name
        for node in ast.walk(ast.parse(before))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and node.lineno <= changed <= (node.end_lineno or 0)
    }


def room_of(path: Path, names: Collection[str]) -> list[str]:
    """Return the tests for a file of xmp/, the likeliest to see a change within ``names`` first.

    Those named like the file come first, then those that mention it, and of these the ones that
    mention most of the names.
    """
    parts = path.with_suffix("").parts[1:]
    rooms = TESTS.get("/".join(parts[:2])) or TESTS.get(parts[0]) or ("launcher",)
    found: list[Path] = []
    for room in (ROOT / "tests" / room for room in rooms):
        found += [room] if room.suffix else sorted(room.rglob("test_*.py"))
    name = (path.parent.name if path.stem == "__init__" else path.stem).strip("_")
    found = [*dict.fromkeys(found)]  # a file and its room may both be named
    texts = {file: file.read_text() for file in found}

    def place(file: Path) -> tuple[bool, bool, int]:
        text = texts[file]
        words = {*re.findall(r"\w+", text)}
        return name not in file.stem, name not in text, -len(words & {*names})

    return [str(file.relative_to(ROOT)) for file in sorted(found, key=place)]


def lane_of(path: Path) -> tuple[str, str]:
    """Return the lane of its own that a file needs ("" for none), and the environment."""
    return LANES.get(str(path), ("", ".venv"))


def python_of(venv: str = ".venv") -> str:
    """Return the interpreter of an environment. Raise SystemExit where it was never made."""
    found = ROOT / venv / "bin/python"
    if not found.exists():
        lane = venv.removeprefix(".venv-")
        raise SystemExit(f"{venv} is missing: ./scripts/test --{lane} makes it")
    return str(found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./scripts/mutate", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="how many to draw")
    parser.add_argument("--seed", type=int, default=14, help="which: the same ones for the same")
    parser.add_argument("--first", type=int, default=0, help="how many of these to pass over")
    parser.add_argument("--last", type=int, help="the number of the last one to try")
    parser.add_argument("--jobs", type=int, default=1, help="how many to try at a time")
    parser.add_argument("--seconds", type=int, default=900, help="for the tests of one")
    options = parser.parse_args()
    found = drawn(options.seed, options.count)
    for path, *_ in found:
        python_of(lane_of(path)[1])  # now, not after an hour
    chosen = list(enumerate(found[: options.last], 1))[options.first :]
    with tempfile.TemporaryDirectory(prefix="xmp-mutate-") as folder:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for job in range(options.jobs):
            copies.put(copied(Path(folder) / f"copy-{job}"))

        def lives(numbered: tuple[int, tuple[Path, str, int]]) -> bool:
            number, (path, operator, occurrence) = numbered
            copy = copies.get()
            try:
                verdict, diff = tried(copy, path, operator, occurrence, options.seconds)
            finally:
                copies.put(copy)
            shown = f"{number}: {verdict}: {path}: {operator}\n{diff if verdict == 'lives' else ''}"
            print(shown, end="", flush=True)
            return verdict == "lives"

        with ThreadPoolExecutor(options.jobs) as pool:
            lived = sum(pool.map(lives, chosen))
    print(f"{len(chosen) - lived} found, {lived} lived")
    return 0


def copied(copy: Path) -> Path:
    """Make a copy of the checkout, for one job."""
    left_out = shutil.ignore_patterns(
        ".git", ".venv*", ".slurm", ".sshd", "__pycache__", ".*_cache"
    )
    shutil.copytree(ROOT, copy, ignore=left_out)
    subprocess.run([python_of(), "-m", "compileall", "-q", "xmp"], cwd=copy, check=True)
    return copy


def tried(copy: Path, path: Path, operator: str, occurrence: int, seconds: int) -> tuple[str, str]:
    """Return what became of one mutation, and its diff."""
    file = copy / path
    before = file.read_text()
    after = mutate_code(before, get_operator(operator)(), occurrence)
    assert after is not None
    file.write_text(after)
    shown = subprocess.run(
        ["diff", "-u0", str(ROOT / path), str(file)], capture_output=True, text=True, check=False
    )
    try:
        return ("found" if fails(copy, path, before, after, seconds) else "lives"), shown.stdout
    except subprocess.TimeoutExpired:
        return "lives", f"the tests took longer than {seconds} s\n{shown.stdout}"
    finally:
        file.write_text(before)


def fails(copy: Path, path: Path, before: str, after: str, seconds: int) -> bool:
    """Return whether a test of the file's room fails because of the mutation.

    Such a test fails by itself, too, and passes without the mutation. Others fail by chance or by
    what an earlier test left behind: all run again without them.
    """
    lane, venv = lane_of(path)
    tests = [f"tests/{lane}"] if lane else room_of(path, names_at_change(before, after))
    marks = ["-m", lane or f"not (methods or hosts or peers or {ELSEWHERE})"]
    command = [python_of(venv), "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["--timeout=60"]  # many mutations of a launcher make it wait for ever
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each program would compile all of xmp
    others: list[str] = []  # --deselect options

    def run(source: str, *words: str) -> subprocess.CompletedProcess[str]:
        (copy / path).write_text(source)
        return subprocess.run(
            [*command, *words],
            cwd=copy, env=environment, capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip

    while (done := run(after, *tests, *marks, *others)).returncode:
        failed = _FAILED.findall(done.stdout)
        if not failed:
            return True  # nothing could be imported
        if run(after, *failed).returncode and not run(before, *failed).returncode:
            return True
        left_out = [f"--deselect={name}" for name in failed]
        if set(left_out) <= set(others):
            raise SystemExit(f"pytest runs what it was to leave out: {failed}")
        others += left_out
    return False


if __name__ == "__main__":
    sys.exit(main())
