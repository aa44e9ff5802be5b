"""Programs whose processes hang before the first line of xmp: at Python's start, or at a fork.

A real ``sitecustomize`` does it, as debuggers and coverage tools install one: what it registers
runs before the hooks of every other library.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.support.in_script import is_alive, parent
from tests.support.stage import Stage
from tests.support.waiting import until

__all__ = ["LAUNCH", "start", "stuck", "watched"]

SITE = """
import os, signal, sys

def hang(what):
    folder = os.environ["HANG_FOLDER"]
    if os.environ["HANG_AT"] == what and os.path.exists(f"{folder}/hang"):
        os.close(os.open(f"{folder}/stuck-{os.getpid()}", os.O_CREAT | os.O_WRONLY))
        while True:
            signal.pause()

def name():
    with open("/proc/self/comm") as file:
        return file.read().strip()

launcher = "XMP_LAUNCHER" not in os.environ

def forker():
    return "launcher" if launcher and not name().startswith("xmp-") else name()

def before():
    births = sys.modules.get("xmp._processes.system.births")
    if births is not None and "HANG_SECONDS" in os.environ:
        births._SECONDS = float(os.environ["HANG_SECONDS"])
    hang(f"before {forker()}")

if "HANG_AT" in os.environ:
    for module in ("template.template_main", "replica.fresh_interpreter"):
        if any(module in word for word in sys.orig_argv):
            hang(f"start {module}")
    os.register_at_fork(
        before=before,
        after_in_parent=lambda: hang(f"parent {forker()}"),
        after_in_child=lambda: hang(f"child {forker()}"),
    )
"""

LAUNCH = """
    import os, sys, time
    import in_script, xmp

    def fn(rank):
        in_script.never_returns()

    if __name__ == "__main__":
        xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1], grace=0.3)
"""


def start(
    stage: Stage,
    at: str,
    *argv: str,
    source: str = LAUNCH,
    env: dict[str, str] | None = None,
    **options: Any,
) -> subprocess.Popen[str]:
    """Start a program in which what ``at`` names hangs, once there is a file ``hang``.

    ``start MODULE`` is a fresh interpreter before its first line; ``before NAME``, ``parent NAME``
    and ``child NAME`` are the hooks around a fork that this process makes.
    """
    library = stage.folder / "site"
    stage.write(SITE, "site/sitecustomize.py")
    path = os.pathsep.join([str(library), stage.environment()["PYTHONPATH"]])
    known = {"PYTHONPATH": path, "HANG_AT": at, "HANG_FOLDER": str(stage.folder)}
    return stage.start(source, *argv, env={**known, **(env or {})}, **options)


def stuck(folder: Path, count: int = 1) -> list[int]:
    """The pids of those that hang, once there are so many."""

    def found() -> list[int]:
        pids = [int(path.name[6:]) for path in folder.glob("stuck-*")]
        alive = [pid for pid in pids if is_alive(pid)]
        return alive if len(alive) >= count else []

    return until(found, 20, f"{count} that hang")


def watched(pid: int) -> None:
    """Wait until its parent has done what it does after a fork: a pipe leads from it to ``pid``.

    A parent that is killed before has left a process that its own launcher ends.
    """

    def leads() -> bool:
        (theirs_in, theirs_out), (ours_in, ours_out) = map(_pipes, (pid, parent(pid)))
        return bool((theirs_in - theirs_out) & (ours_out - ours_in))

    until(leads, 10, "the parent's end of the fork")


def _pipes(pid: int) -> tuple[set[str], set[str]]:
    """The pipes whose reading and whose writing ends a process has open."""
    ends: dict[int, set[str]] = {os.O_RDONLY: set(), os.O_WRONLY: set(), os.O_RDWR: set()}
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # it is closed by now
            flags = Path(f"/proc/{pid}/fdinfo/{number}").read_text().split()[3]
            ends[int(flags, 8) & os.O_ACCMODE].add(os.readlink(f"/proc/{pid}/fd/{number}"))
    return ends[os.O_RDONLY], ends[os.O_WRONLY]
