"""``xmp clean``: ends the processes that launches have left behind, and no others.

It shows those of which only a text says so, which any process may carry.
"""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from xmp._os import proc
from xmp._os.probe.holders import Holder
from xmp._os.probe.launches import ENGINE, Doubtful, described, leftovers
from xmp._os.proc import Process
from xmp._processes.system.descriptors import raise_descriptor_limit
from xmp._processes.system.processes import HeldProcess
from xmp._words.errors import XmpError

__all__ = ["Cleaned", "clean", "look", "run"]

_GRACE = 2.0
_KILL_WAIT = 2.0
_ROUNDS = 5


@dataclass
class Cleaned:
    """What has become of each leftover."""

    ended: list[Holder] = field(default_factory=list)
    stuck: list[Holder] = field(default_factory=list)
    """They live on, or with ``--dry-run`` they would be ended."""
    doubtful: list[str] = field(default_factory=list)
    """Left alone, with the reason."""


def run(options: argparse.Namespace) -> int:
    """Print what ended, or with ``--dry-run`` what would; 1 if something does not end."""
    if why := proc.foreign():
        raise XmpError(why)
    done = look() if options.dry_run else clean()
    for holder in done.ended:
        print(f"ended {holder}")
    for holder in done.stuck:
        print(f"{'would end' if options.dry_run else 'does not end (SIGKILL was sent):'} {holder}")
    for line in done.doubtful:
        print(line)
    if not (done.ended or done.stuck or done.doubtful):
        print("nothing left behind")
    return int(bool(done.stuck) and not options.dry_run)


def look() -> Cleaned:
    """Return what ``clean`` would end now."""
    found = leftovers()
    holders = [described(process) for process in found.proven]
    return Cleaned(stuck=holders, doubtful=_left_alone(found.doubtful))


def clean() -> Cleaned:
    """End what is left: SIGTERM, 2 s, SIGKILL."""
    raise_descriptor_limit()  # one for each process
    done = Cleaned()
    found, doubtful = leftovers()
    for _ in range(_ROUNDS):  # what is being ended may start something
        holders = {process: described(process) for process in found}
        left = _end(found)
        done.ended += [holder for process, holder in holders.items() if process not in left]
        done.stuck = [holders[process] for process in left]
        if not found or left:
            break
        found, doubtful = leftovers(settle=0.1)
    done.doubtful = _left_alone(doubtful)
    return done


def _left_alone(doubtful: Iterable[Doubtful]) -> list[str]:
    return [
        f"not ended: {described(each.process)} ({each}: end it by hand if it is yours)"
        for each in doubtful
    ]


def _end(found: Sequence[Process]) -> list[Process]:
    """End these; returns those that live on."""
    held = [each for each in map(HeldProcess.hold, found) if each is not None]
    try:
        for each in held:
            # A supervisor or template that is woken would kill at once, without any grace.
            if each.process.name not in ENGINE:
                each.signal(signal.SIGTERM)
                each.signal(signal.SIGCONT)  # a stopped process does not see SIGTERM
        _wait([each for each in held if each.process.name not in ENGINE], _GRACE)
        for each in held:
            each.signal(signal.SIGKILL)
        _wait(held, _KILL_WAIT)
        return [each.process for each in held if each.lives]
    finally:
        for each in held:
            each.close()


def _wait(held: Sequence[HeldProcess], seconds: float) -> None:
    end = time.monotonic() + seconds
    while any(each.lives for each in held) and time.monotonic() < end:
        time.sleep(0.01)
