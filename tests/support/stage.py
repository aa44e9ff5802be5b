"""Programs that launch, each in its own session, and which processes of them are alive.

Everything that belongs to one stage carries the same token in the environment that its process
was started with (forks keep it), so that orphans are found wherever they went.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.in_script import TOKEN, carrying
from tests.support.waiting import until

__all__ = [
    "PACKAGE",
    "ROOT",
    "SUPPORT",
    "Outcome",
    "Python",
    "Script",
    "Stage",
    "parent_of",
    "slowness",
]

SUPPORT = Path(__file__).resolve().parent
ROOT = Path(xmp.__file__).resolve().parents[1]
PACKAGE = ROOT / "xmp"
"""Where our files are; a checkout may be named xmp, too."""
KERNEL_PATIENCE = 1.0  # seconds in which everything of a killed launch has to be gone
USUAL = 0.02  # seconds that an interpreter takes to start and end where nothing else runs


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a program ended, and what it wrote."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def said(self) -> dict[str, Any]:
        """What it said by name (``in_script.say``)."""
        facts: dict[str, Any] = {}
        for line in self.out.splitlines():
            if line.startswith("@"):
                facts.update(json.loads(line[1:]))
        return facts

    def json(self) -> Any:
        """The last line of standard output, after the program ended well."""
        assert self.code == 0, f"exit {self.code}\n{self.out}\n{self.err}"
        return json.loads(self.out.splitlines()[-1])


Python = Callable[..., Outcome]
"""The ``python`` fixture: arguments, and the options of ``Stage.python``."""
Script = Callable[..., Outcome]
"""The ``script`` fixture: source, arguments, and the options of ``Stage.python``."""


def slowness() -> float:
    """How many times longer everything takes on this host now than it usually does; 1 or more."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
    return max(1.0, (time.monotonic() - start) / USUAL)


class Stage:
    """Runs programs; knows every process that came from them."""

    OURS = ("xmp-template", "xmp-supervisor", "xmp-script", "xmp-keeper")

    def __init__(self, folder: Path, path: tuple[Path, ...] = (SUPPORT, ROOT)) -> None:
        self.folder = folder
        self.path = path
        """What programs can import besides what is installed."""
        self.token = uuid.uuid4().hex
        self._popen: list[subprocess.Popen[str]] = []
        self._count = 0

    def write(self, source: str, name: str = "") -> Path:
        self._count += 1
        path = self.folder / (name or f"script{self._count}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return path

    def environment(self, env: dict[str, str] | None = None) -> dict[str, str]:
        path = {"PYTHONPATH": os.pathsep.join(map(str, self.path))} if self.path else {}
        return {**os.environ, **path, TOKEN: self.token, **(env or {})}

    def start(
        self,
        source: str,
        *argv: str,
        env: dict[str, str] | None = None,
        file: bool = True,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start a script; its streams are files, which never fill.

        With ``file=False`` it is handed to ``python -c``: a program without a file, as in a cell.
        """
        path = self.write(source)
        program = [str(path)] if file else ["-c", path.read_text()]
        with (
            open(self.folder / f"{path.name}.out", "w") as out,
            open(self.folder / f"{path.name}.err", "w") as err,
        ):
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            streams.update(options)
            process = self.start_command(sys.executable, *program, *argv, env=env, **streams)
        process.script = path  # type: ignore[attr-defined]
        return process

    def start_command(
        self, *command: str, env: dict[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start any program in its own session; ``options`` are those of Popen."""
        options.setdefault("cwd", self.folder)
        process = subprocess.Popen(
            command, text=True, env=self.environment(env), start_new_session=True, **options
        )
        self._popen.append(process)
        return process

    def outcome(
        self, process: subprocess.Popen[str], timeout: float = 60, stdin: str | None = None
    ) -> Outcome:
        """Wait for a program, and for the end of its pipes; on its deadline, say what is alive."""
        start = time.monotonic()
        try:
            piped = process.communicate(stdin, timeout)
        except subprocess.TimeoutExpired:
            alive = self.alive()
            self.end()
            out, err = self._written(process, process.communicate(timeout=5))
            pytest.fail(f"not within {timeout} s: {process.args}; alive: {alive}\n{out}\n{err}")
        out, err = self._written(process, piped)
        return Outcome(process.returncode, out, err, time.monotonic() - start)

    def _written(
        self, process: subprocess.Popen[str], piped: tuple[str | None, str | None]
    ) -> tuple[str, str]:
        """What came through pipes, or what is in the files of a script."""
        script = getattr(process, "script", None)
        out, err = (
            (self.folder / f"{script.name}.{end}").read_text() if text is None and script else text
            for end, text in zip(("out", "err"), piped)
        )
        return out or "", err or ""

    def python(
        self,
        *arguments: str,
        timeout: float = 60,
        stdin: str = "",
        shell_before: str | None = None,
        **options: Any,
    ) -> Outcome:
        """Run an interpreter over pipes, as in a shell pipeline; whatever its exit code.

        ``shell_before`` is a shell command that runs first in the same process (``ulimit -n 256``).
        """
        command = [sys.executable, *arguments]
        if shell_before is not None:
            command = ["/bin/sh", "-c", f'{shell_before}; exec "$@"', "sh", *command]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return self.outcome(self.start_command(*command, **pipes, **options), timeout, stdin)

    def run(
        self, source: str, *argv: str, timeout: float = 60, ok: bool = True,
        env: dict[str, str] | None = None, file: bool = True,
    ) -> Outcome:  # fmt: skip
        """Run a script to its end; nothing of it may be left 1 s later."""
        outcome = self.outcome(self.start(source, *argv, env=env, file=file), timeout)
        if ok:
            assert outcome.code == 0, f"exit code {outcome.code}\n{outcome.out}\n{outcome.err}"
        self.gone()
        return outcome

    def reached(self, process: subprocess.Popen[str], *names: str, seconds: float = 30) -> None:
        """Wait until files of these names are there; fails at once when the program has ended."""
        marks = [self.folder / name for name in names]
        until(
            lambda: all(mark.exists() for mark in marks) or process.poll() is not None,
            seconds, lambda: f"{[m.name for m in marks if not m.exists()]}; alive: {self.alive()}",
        )  # fmt: skip
        assert process.poll() is None, self.outcome(process)

    def in_function(self, process: subprocess.Popen[str], replicas: int = 3) -> None:
        """Wait until so many replicas have noted that they are in their function."""
        self.reached(process, *(f"in-fn-{rank}" for rank in range(replicas)))

    @property
    def last(self) -> subprocess.Popen[str]:
        """The script that was started last."""
        return self._popen[-1]

    def alive(self) -> dict[int, str]:
        return carrying(self.token)

    def named(self, *names: str) -> list[int]:
        return [pid for pid, name in self.alive().items() if name in names]

    def supervisors(self) -> list[int]:
        return self.first_of("xmp-supervisor")

    def first_of(self, name: str) -> list[int]:
        """Those of this name but for their forks, which carry it too until they have their own."""
        named = self.named(name)
        return [pid for pid in named if parent_of(pid) not in named]

    def replicas(self) -> list[int]:
        """The pids of all that have a rank, by rank."""
        ranks = {name: pid for pid, name in self.alive().items() if name.startswith("xmp-replica-")}
        return [ranks[name] for name in sorted(ranks, key=lambda name: int(name[12:]))]

    def gone(self, *names: str, seconds: float = KERNEL_PATIENCE) -> None:
        """Wait until nothing is left, or nothing of these names; longer on a host that is slow."""
        start = time.monotonic()
        while left := {p: n for p, n in self.alive().items() if not names or n in names}:
            late = time.monotonic() - start
            if late > seconds and late > seconds * slowness():
                pytest.fail(f"alive {late:.2f} s later: {describe(left)}")
            time.sleep(0.01)

    def end(self) -> None:
        """Kill what is left."""
        for _ in range(50):
            left = self.alive()
            if not left:
                break
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        for process in self._popen:
            process.kill()
            process.wait(5)


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def describe(pids: dict[int, str]) -> str:
    lines = []
    for pid, name in pids.items():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            lines.append(f"{pid} {name} state {fields[0]} parent {fields[1]} group {fields[2]}")
        except OSError:
            lines.append(f"{pid} {name} (gone by now)")
    return "; ".join(lines)
