"""The mark that every process of a launch carries: it names the launcher.

It has no file: forks inherit it as the name of a mapped page, programs that they exec as a
variable. So it ends with the process, only its owner can read it, and no other user can forge it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from xmp import _proc

__all__ = ["ADDED_SCORE", "PAGE", "VARIABLE", "Mark", "mine"]

VARIABLE = "XMP_LAUNCHER"
PAGE = "xmp-launcher."
ADDED_SCORE = 300
"""By how much a replica's score exceeds its launcher's: the kernel kills the replica first."""


@dataclass(frozen=True)
class Mark:
    """The process that launched; ``parse`` reads what ``str`` returns.

    A pid alone is no name: the kernel reuses it, and other boots and containers have it too.
    """

    pid: int
    started: int
    """Its start, in clock ticks after the boot."""
    boot: str
    space: str
    """The pid namespace of the launcher."""
    score: int
    """``oom_score_adj`` of its replicas: the kernel prefers them when memory runs out."""

    def __str__(self) -> str:
        return f"{self.pid}.{self.started}.{self.boot}.{self.space}.{self.score}"

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """The mark that this text is; None for any other text."""
        parts = text.split(".")
        if len(parts) != 5 or not all(n.isdigit() for n in (*parts[:2], parts[4].lstrip("-"))):
            return None
        return cls(int(parts[0]), int(parts[1]), parts[2], parts[3], int(parts[4]))


def mine(root: str = "/") -> Mark:
    """The mark of this process as a launcher (``root`` stands for ``/``)."""
    own = _proc.process("self", root)
    score = _proc.text(os.path.join(root, "proc/self/oom_score_adj"))
    return Mark(
        pid=os.getpid(),
        started=own.started if own is not None else 0,
        boot=_proc.text(os.path.join(root, "proc/sys/kernel/random/boot_id"))[:8] or "-",
        space=_proc.namespace("pid", root).strip("pid:[]") or "-",
        score=min(1000, int(score or 0) + ADDED_SCORE),
    )
