"""The record that each launch leaves while it runs: every process of it names its launcher.

It has no file: forks carry it as the name of a mapped page, programs they exec in a variable. So it
ends with the process, is its owner's alone to read, and nobody else can write one for it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["PAGE", "VARIABLE", "Mark", "mine", "started"]

VARIABLE = "XMP_LAUNCHER"
PAGE = "xmp-launcher."
_VICTIMS = 300


@dataclass(frozen=True)
class Mark:
    """Which process has launched; ``str`` gives it as ``parse`` reads it.

    A number alone is no name: others get it again, other boots and containers have it too.
    """

    pid: int
    started: int
    """In clock ticks after the boot."""
    boot: str
    space: str
    """The process namespace in which the launcher has its number."""
    score: int
    """What the kernel adds for its replicas when it looks for a victim (``oom_score_adj``)."""

    def __str__(self) -> str:
        return f"{self.pid}.{self.started}.{self.boot}.{self.space}.{self.score}"

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """The mark that somebody wrote; None for any other text."""
        parts = text.split(".")
        if len(parts) != 5 or not all(n.isdigit() for n in (*parts[:2], parts[4].lstrip("-"))):
            return None
        return cls(int(parts[0]), int(parts[1]), parts[2], parts[3], int(parts[4]))


def mine(root: str = "/") -> Mark:
    """The mark of this process as a launcher (``root`` stands for ``/``)."""
    own = os.path.join(root, "proc/self")
    return Mark(
        pid=os.getpid(),
        started=started(_read(f"{own}/stat")),
        boot=_read(os.path.join(root, "proc/sys/kernel/random/boot_id"))[:8] or "-",
        space=_namespace(f"{own}/ns/pid"),
        score=min(1000, int(_read(f"{own}/oom_score_adj") or 0) + _VICTIMS),
    )


def started(stat: str) -> int:
    """When a process began, from its ``stat`` file; 0 where there is none."""
    # The command's name stands in brackets and may hold blanks: the fields begin after them.
    fields = stat.rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 else 0


def _namespace(path: str) -> str:
    try:
        return os.readlink(path).strip("pid:[]")
    except OSError:
        return "-"


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
