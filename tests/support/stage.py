"""Scripts that launch, each in a session of its own, and what of them is still alive.

Everything that belongs to one script carries the same token in the environment that its process
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
from in_script import TOKEN, carrying

import xmp

HERE = Path(__file__).resolve().parent
ROOT = Path(xmp.__file__).resolve().parents[1]
KERNEL_PATIENCE = 1.0  # seconds in which everything of a killed launch has to be gone
USUAL = 0.02  # seconds that an interpreter takes to start and end where nothing else runs


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a script ended and what it said (``in_script.say``), by name."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def said(self) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        for line in self.out.splitlines():
            if line.startswith("@"):
                facts.update(json.loads(line[1:]))
        return facts


def until(done: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait for a condition; its value, or a failure that says what did not come."""
    end = time.monotonic() + seconds
    while True:
        value = done()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.005)


def slowness() -> float:
    """How many times longer everything takes on this host now than it usually does; 1 or more."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
    return max(1.0, (time.monotonic() - start) / USUAL)


class Stage:
    """Runs scripts; knows every process that came from them."""

    OURS = ("xmp-template", "xmp-supervisor", "xmp-script", "xmp-keeper")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = uuid.uuid4().hex
        self._popen: list[subprocess.Popen[str]] = []
        self._count = 0

    def write(self, source: str, name: str = "") -> Path:
        self._count += 1
        path = self.folder / (name or f"script{self._count}.py")
        path.write_text(textwrap.dedent(source))
        return path

    def environment(self, env: dict[str, str] | None = None) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": f"{HERE}{os.pathsep}{ROOT}",
            TOKEN: self.token,
            **(env or {}),
        }

    def start(
        self,
        source: str,
        *argv: str,
        env: dict[str, str] | None = None,
        file: bool = True,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start a script in a session of its own; its streams are files, which nobody fills.

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
            process = subprocess.Popen(
                [sys.executable, *program, *argv],
                text=True, env=self.environment(env), cwd=self.folder, start_new_session=True,
                **streams,
            )  # fmt: skip
        process.script = path  # type: ignore[attr-defined]
        self._popen.append(process)
        return process

    def outcome(self, process: subprocess.Popen[str], timeout: float = 30) -> Outcome:
        """Wait for a script; on its deadline, every stack that can be had."""
        start = time.monotonic()
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            alive = self.alive()
            self.end()
            out, err = self._streams(process)
            pytest.fail(f"not within {timeout} s; alive: {alive}\n{out}\n{err}")
        out, err = self._streams(process)
        return Outcome(code, out, err, time.monotonic() - start)

    def _streams(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        name = process.script.name  # type: ignore[attr-defined]
        return tuple((self.folder / f"{name}.{end}").read_text() for end in ("out", "err"))  # type: ignore[return-value]

    def run(
        self, source: str, *argv: str, timeout: float = 30, ok: bool = True,
        env: dict[str, str] | None = None, file: bool = True,
    ) -> Outcome:  # fmt: skip
        """Run a script to its end; nothing of it may be left 1 s later."""
        outcome = self.outcome(self.start(source, *argv, env=env, file=file), timeout)
        if ok:
            assert outcome.code == 0, f"exit code {outcome.code}\n{outcome.out}\n{outcome.err}"
        self.gone()
        return outcome

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
        for _ in range(50):
            left = self.alive()
            if not left:
                break
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        for process in self._popen:
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
