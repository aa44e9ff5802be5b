"""Finds out whether a replica was killed for lack of memory, from the kernel's counters.

The launcher reads them at the launch and after a failure: its control group is its replicas'.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xmp._os.probe import resources
from xmp._processes.messages.order import Failure
from xmp._rules.watch import CAUSE, STOPPED, UNKNOWN

__all__ = ["OomCounters", "OomFinding"]

_SHELLS_KILLED = 137
_ADVICE = "Use less memory in each replica, start fewer replicas, or raise the limit."
_UNKNOWN = "reason unknown"
_NO_MEMORY = "out of memory"
_SIGNALLED = (
    "So a process sent the signal: the replica itself (os.kill in the code that it runs), or\n"
    "another one: see the logs of the scheduler and the container runtime."
)
_BY_SHELL = "If a shell passed this code on, a process sent SIGKILL to one of its programs."


@dataclass(frozen=True)
class OomFinding:
    """The evidence of the counters about a launch that failed."""

    before: resources.Counted | None = None
    after: resources.Counted | None = None
    bound: resources.Bound | None = None
    largest: Mapping[int, int] = field(default_factory=dict)
    """The peak resident memory of each process that has ended, in bytes, by rank."""

    @property
    def kills(self) -> int | None:
        """The number of processes killed for lack of memory; None if no counter could be read."""
        before, after = self.before, self.after
        if before is None or after is None or before.everywhere != after.everywhere:
            return None
        return after.kills - before.kills

    def why(self, failure: Failure) -> str:
        """Return in a few words why the replica was killed; "" if it was not."""
        killed = failure.signal_name == "SIGKILL" or failure.exit_code == _SHELLS_KILLED
        if not killed or failure.label == STOPPED:
            return ""
        if self.kills is None:
            return _UNKNOWN
        if not self.kills:
            return "not by xmp, and memory did not run out"
        return _UNKNOWN if self._everywhere else _NO_MEMORY

    def largest_first(self, failures: Sequence[Failure]) -> list[Failure]:
        """Put the largest of the replicas that the kernel killed first, if one of them was first.

        The kernel kills the largest process of the control group first (oom_badness() in its
        mm/oom_kill.c), and another one if that one frees its memory too slowly; which is also why
        the smaller one's end is seen first.
        """
        killed = [each for each in failures[1:] if self.why(each) == _NO_MEMORY]
        if not killed or self.why(failures[0]) != _NO_MEMORY:
            return list(failures)
        first = failures[0]
        most = max([first, *killed], key=lambda each: self.largest.get(each.rank, 0))
        first.label, most.label = UNKNOWN, CAUSE
        return [most, *(each for each in failures if each is not most)]

    def found(self, killed: bool, by_signal: bool = True) -> str:
        """Return the evidence, with advice; also if memory ran out but no replica was ``killed``.

        ``by_signal=False``: the replica ended with a shell's exit code for a killed program.
        """
        kills = self.kills
        if not kills and not killed:
            return ""
        if kills is None:
            return "xmp cannot say whether memory ran out: it can read no memory control group."
        where = "the whole machine" if self._everywhere else "this memory control group"
        if not kills:
            none = f"The kernel counted no out-of-memory kill in {where} during the launch."
            return f"{none}\n{_SIGNALLED if by_signal else _BY_SHELL}"
        times = "one out-of-memory kill" if kills == 1 else f"{kills} out-of-memory kills"
        counted = f"The kernel counted {times} in {where} during the launch."
        if self._everywhere:
            return counted
        what = "Out of memory" if killed else "A process was killed for lack of memory"
        return f"{what}: {self._sizes()}.\n{counted}\n{_ADVICE}"

    def _sizes(self) -> str:
        """Return the sizes: ``limit 12.7 GiB, 8 replicas, largest 1.9 GiB (rank 3)``."""
        parts = []
        if self.bound is not None:
            name = "limit" if self.bound.of_group else "the machine's memory"
            parts.append(f"{name} {_size(self.bound.size)}")
        if self._peak:
            parts.append(f"peak {_size(self._peak)}")
        if self.largest:
            count = len(self.largest)
            rank, most = max(self.largest.items(), key=lambda item: item[1])
            parts.append("1 replica" if count == 1 else f"{count} replicas")
            parts.append(f"largest {_size(most)} (rank {rank})")
        return ", ".join(parts)

    @property
    def _everywhere(self) -> bool:
        return self.after is not None and self.after.everywhere

    @property
    def _peak(self) -> int:
        """The peak of memory in use in bytes, if it was during this launch; else 0."""
        before = self.before.peak if self.before is not None else None
        after = self.after.peak if self.after is not None else None
        return after if before is not None and after is not None and after > before else 0


class OomCounters:
    """The counters, read when a launch begins and again when it has failed."""

    def __init__(self) -> None:
        self._before = resources.count()
        self._at = time.monotonic()
        self.largest: dict[int, int] = {}

    def lately(self) -> OomCounters:
        """Return counters that were read within the last second: these, or new ones."""
        return self if time.monotonic() - self._at < 1.0 else OomCounters()

    def look(self) -> OomFinding:
        """Read the counters again, and return what is known now."""
        return OomFinding(self._before, resources.count(), resources.bound(), dict(self.largest))


def _size(count: float) -> str:
    """Return a size as text: ``1.9 GiB`` or ``23 MiB``."""
    gib = count / (1 << 30)
    return f"{gib:.1f} GiB" if gib >= 0.95 else f"{count / (1 << 20):.0f} MiB"
