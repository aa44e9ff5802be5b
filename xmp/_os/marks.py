"""The mark that every process of a launch carries: it names the launcher.

It has no file and ends with the process. Its text is the name of a mapped page, which forked
processes inherit, and a variable, which the programs that they exec inherit. Both can be copied:
the kernel vouches for a page (``probe/carried``), and for either text by a resource limit that
names the same launcher, which only descendants inherit.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from . import proc

__all__ = [
    "ADDED_SCORE", "LOCKS", "PAGE", "RUNTIME", "VARIABLE", "LauncherId", "Mark", "launcher_of",
    "mine", "program",
]  # fmt: skip

VARIABLE = "XMP_LAUNCHER"
PAGE = "xmp-launcher."
RUNTIME = "xmp-runtime."
"""The page that a supervisor adds: the runtime of its launch."""
_MOST = 80
"""The most bytes of a program in a mark: the kernel takes 249 for the name of a memory file."""
LOCKS = 10
"""RLIMIT_LOCKS: Linux still keeps it for each process but no longer enforces it: getrlimit(2). The
mark is its soft limit, which every process may change back."""
_PID_BITS, _START_BITS = 22, 36  # the kernel's PID_MAX_LIMIT; twenty years in clock ticks
_TAG = 0b10101 << (_PID_BITS + _START_BITS)  # distinguishes it from limits that people set
LauncherId = tuple[int, int]
"""Pid and start, which name a launcher within one boot and pid namespace."""
ADDED_SCORE = 300
"""How much a replica's score exceeds its launcher's: the kernel kills the replica first."""


@dataclass(frozen=True)
class Mark:
    """The process that launched, as text by ``str``, which ``parse`` reads."""

    pid: int
    started: int
    """Its start, in clock ticks after the boot."""
    boot: str
    space: str
    """The pid namespace of the launcher."""
    score: int
    """``oom_score_adj`` of its replicas: the kernel prefers them when memory runs out."""
    program: str = ""
    """The user's program, for people: any process of this user may write any text here."""

    def __str__(self) -> str:
        text = f"{self.pid}.{self.started}.{self.boot}.{self.space}.{self.score}"
        return f"{text}.{self.program.encode(errors='replace').hex()}" if self.program else text

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """Return the mark that this text is; None for any other text."""
        parts = text.split(".")
        try:
            pid, started, boot, space, score, *more = parts
            if len(more) > 1 or len("".join(more)) > 2 * _MOST:
                return None
            program = bytes.fromhex("".join(more)).decode(errors="replace")
            return cls(int(pid), int(started), boot, space, int(score), program)
        except ValueError:
            return None

    @property
    def launcher(self) -> LauncherId:
        """The process that launched, in this boot and namespace."""
        return self.pid, self.started

    @property
    def limit(self) -> int | None:
        """The mark as a resource limit; None for one that is too large."""
        if 0 < self.pid < 1 << _PID_BITS and 0 < self.started < 1 << _START_BITS:
            return _TAG | self.started << _PID_BITS | self.pid
        return None


def launcher_of(limit: int) -> LauncherId | None:
    """Return the launcher that a resource limit names; None for any other limit."""
    started, pid = divmod(limit ^ _TAG, 1 << _PID_BITS)
    return (pid, started) if 0 < started < 1 << _START_BITS and pid else None


def mine(root: str = "/") -> Mark:
    """Return the mark of this process as a launcher (``root`` stands for ``/``)."""
    own = proc.process("self", root)
    score = proc.text(os.path.join(root, "proc/self/oom_score_adj"))
    return Mark(
        pid=os.getpid(),
        started=own.started if own is not None else 0,
        boot=proc.text(os.path.join(root, "proc/sys/kernel/random/boot_id"))[:8] or "-",
        space=proc.namespace("pid", root).strip("pid:[]") or "-",
        score=min(1000, int(score or 0) + ADDED_SCORE),
        program=program(),
    )


def program() -> str:
    """Return what the user has started, as far as this process knows; never its arguments."""
    main = sys.modules.get("__main__")
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    name = str(getattr(spec, "name", None) or "").removesuffix(".__main__")
    if name == "xmp" or os.path.basename(str(path)) == "xmp":
        script = next((word for word in sys.argv[1:] if word.endswith(".py")), "")
        return _fitting(f"xmp run {os.path.abspath(script)}" if script else "xmp run")
    if name or path:
        return _fitting(f"python -m {name}" if name else os.path.abspath(str(path)))
    if "ipykernel" in sys.modules:
        name = os.environ.get("JPY_SESSION_NAME") or str(getattr(main, "__vsc_ipynb_file__", ""))
        return _fitting(f"notebook {name}" if name else "a notebook")
    return "python -c" if sys.argv[:1] == ["-c"] else "an interactive Python"


def _fitting(text: str) -> str:
    """Return the end of a text, as much as a mark holds: the end of a path says most."""
    return text.encode(errors="replace")[-_MOST:].decode(errors="ignore")
