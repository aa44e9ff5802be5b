"""The measuring side: keeps one process per system, sends it rounds, looks at it from outside."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import proc
from meeting import Meeting

FOLDER = Path(__file__).resolve().parent
MOST_SECONDS = 240.0
Figures = dict[str, float]
Probe = Callable[[int, Meeting], Figures]

# What a user may have configured would speak for one system or another.
_LEFT_OUT = ("OMP_", "MKL_", "OPENBLAS_", "XMP_", "MASTER_", "GLOO_", "JAX_", "XLA_", "RAY_")


class Failed(Exception):
    """A measured process failed; the text is its last lines."""


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_LEFT_OUT)}
    return {**kept, "PYTHONWARNINGS": "ignore", "MPLBACKEND": "Agg"}


class Measured:
    """One system in one script, alive until ``close``; all of it runs on the processors given."""

    def __init__(
        self, script: str, system: str, cpus: Sequence[int], python: str = sys.executable
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        self._folder = tempfile.TemporaryDirectory(prefix="xmp-bench-")
        self._process = start(script, [system], cpus, self._errors.fileno(), python)
        try:
            self._answer()
        except Failed:
            self.close()
            raise

    def round(self, count: int, probe: Probe | None = None) -> Figures:
        """One round with ``count`` replicas; ``probe`` looks while all of them wait."""
        meeting = Meeting(os.path.join(self._folder.name, "times"), count)
        meeting.clear()
        with meeting.held() if probe else nullcontext():
            request = json.dumps({"path": meeting.path, "count": count})
            self._send(request)
            seen = self._look(meeting, probe) if probe else {}
        return {**self._answer(), **seen}

    def settle(self, beats: float = 0.0) -> None:
        """Wait until nothing goes on in it any more but what always does, as ``proc`` says."""
        proc.wait_until_quiet(self._process.pid, beats=beats)

    def close(self) -> None:
        """End it, however it is."""
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.close()
            self._process.wait(10)
        except (subprocess.TimeoutExpired, OSError):
            pass
        finally:
            end_group(self._process)
            self._process.stdout.close()
            self._errors.close()
            self._folder.cleanup()

    def _send(self, request: str) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(f"{request}\n".encode())
            self._process.stdin.flush()
        except OSError:
            raise Failed(self._last_words("has ended")) from None

    def _look(self, meeting: Meeting, probe: Probe) -> Figures:
        end = time.monotonic() + MOST_SECONDS
        while not meeting.complete():
            if time.monotonic() > end or self._process.poll() is not None:
                raise Failed(self._last_words("replicas do not arrive"))
            time.sleep(0.02)
        return probe(self._process.pid, meeting)

    def _answer(self) -> Figures:
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], MOST_SECONDS)[0]:
            raise Failed(self._last_words(f"no answer within {MOST_SECONDS:.0f} s"))
        line = self._process.stdout.readline()
        if not line:
            raise Failed(self._last_words("has ended"))
        figures: Figures = json.loads(line)
        return figures

    def _last_words(self, what: str) -> str:
        return f"{what}: {last_lines(self._errors.fileno())}"


def start(
    script: str,
    arguments: Sequence[str],
    cpus: Sequence[int],
    errors: int,
    python: str = sys.executable,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [python, str(FOLDER / script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=environment(),
        start_new_session=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
    )


def run_script(script: str, arguments: Sequence[str], cpus: Sequence[int]) -> Figures:
    """Measure the wall clock of a whole script, from before its start until it has ended."""
    with tempfile.TemporaryFile() as errors:
        called = time.monotonic()
        process = start(script, arguments, cpus, errors.fileno())
        try:
            process.communicate(timeout=MOST_SECONDS)
            seconds = time.monotonic() - called
        except subprocess.TimeoutExpired:
            raise Failed(f"not done within {MOST_SECONDS:.0f} s") from None
        finally:
            end_group(process)
        if process.returncode:
            raise Failed(f"exit code {process.returncode}: {last_lines(errors.fileno())}")
    return {"seconds": seconds}


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the session of a measured process, and reap it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def last_lines(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    text = os.pread(descriptor, 2000, max(0, size - 2000)).decode(errors="replace")
    return " | ".join(line for line in text.splitlines()[-6:] if line.strip())


# --- looking from outside -------------------------------------------------------------------------


def memory(root: int, meeting: Meeting) -> Figures:
    """Bytes: private dirty and PSS of the replicas, PSS of the whole tree."""
    replicas = proc.memory(meeting.pids())
    whole = proc.memory(proc.tree(root))
    return {
        "private": replicas["private"],
        "pss": replicas["pss"],
        "pss of tree": whole["pss"],
    }


def idle(root: int, meeting: Meeting) -> Figures:
    """Percent of one processor, over 10 s, of everything beside the replicas."""
    proc.wait_until_quiet(root)
    others = set(proc.tree(root)) - set(meeting.pids())
    before = proc.cpu_seconds(others)
    time.sleep(10)
    return {"percent": 10 * (proc.cpu_seconds(others) - before)}
