"""The hosts' clocks: each time that an agent reports becomes one of the driver's here.

Monotonic clocks of two hosts have nothing in common: each counts from when its host was started. An
engine measures how far a host's is ahead; where driver and agents share a clock that is 0, and no
time changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from xmp._processes.messages import launch as messages
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.hosts import HostOrder
from xmp._processes.messages.timeline import Timeline

__all__ = ["HostClock", "as_here", "as_there"]

_DRIFT = 10_000
"""Nanoseconds after which two clocks may differ by one more: NTP slews by at most 500 ppm
(adjtimex(2)), and crystals are better than 100 ppm."""


class HostClock:
    """How far the monotonic clock of a host is ahead of this process's."""

    def __init__(self) -> None:
        self._least = self._most = 0
        self._measured: int | None = None
        """When that was, by the clock of this process."""

    @property
    def ahead(self) -> int:
        """Nanoseconds; negative where the host was started later."""
        return (self._least + self._most) // 2

    @property
    def uncertainty(self) -> int:
        """How many nanoseconds ``ahead`` may be wrong by: half of the shortest round trip."""
        return (self._most - self._least + 1) // 2

    def measured(self, asked: int, read: int, answered: int) -> None:
        """Note that the host has read its clock between these two moments of this process's.

        It cannot have done so before it was asked, nor after it has answered (Cristian 1989).
        """
        least, most = read - answered, read - asked
        if self._measured is not None:
            drift = abs(answered - self._measured) // _DRIFT
            known = self._least - drift, self._most + drift
            if known[0] <= most and least <= known[1]:  # else one of the hosts has slept meanwhile
                least, most = max(least, known[0]), min(most, known[1])
        self._least, self._most, self._measured = least, most, answered

    def is_fresh(self, seconds: float) -> bool:
        """Return whether it was measured within the last ``seconds``."""
        known = self._measured
        return known is not None and time.monotonic_ns() - known < seconds * 1e9

    def here(self, at: int) -> int:
        """Return a time of the host's clock by that of this process; 0, for none, stays 0."""
        return at and at - self.ahead

    def there(self, at: int) -> int:
        """Return a time of this process's clock by that of the host."""
        return at and at + self.ahead


def as_there(order: HostOrder, clock: HostClock) -> HostOrder:
    """Return the order, with all times by the clock of its host."""
    limits = order.settings.limits
    limits = limits and replace(limits, first=clock.there(limits.first))
    settings = replace(order.settings, limits=limits)
    return replace(order, called=clock.there(order.called), settings=settings)


def as_here(message: Message, clock: HostClock, called: int) -> Message:
    """Return a message of an agent, with all times by the clock of this process.

    ``called``: when the user has called; the agent was asked later.
    """
    convert = _CONVERTERS.get(type(message))
    return message if convert is None else convert(message, clock.here, called)


_Here = Callable[[int], int]


def _started(message: messages.ReplicasStarted, here: _Here, _: int) -> Message:
    replicas = [(rank, pid, here(at)) for rank, pid, at in message.replicas]
    received, loaded = here(message.received), here(message.loaded)
    return message._replace(replicas=replicas, received=received, loaded=loaded)


def _entered(message: messages.ReplicaEntered, here: _Here, _: int) -> Message:
    return message._replace(at=here(message.at))


def _returned(message: messages.ReplicaReturned, here: _Here, called: int) -> Message:
    names = [field.name for field in fields(Timeline)]
    times = {name: here(getattr(message.timeline, name)) for name in names}
    return message._replace(timeline=Timeline(**{**times, "called": called}))


def _events(message: messages.Events, here: _Here, _: int) -> Message:
    known: Any = message.records
    records = [(name, here(at), *rest) for name, at, *rest in known]
    return message._replace(records=records)


def _done(message: messages.Done, here: _Here, _: int) -> Message:
    failures = [replace(each, at=here(each.at)) for each in message.failures]
    return message._replace(failures=failures)


_CONVERTERS: dict[type[Message], Callable[[Any, _Here, int], Message]] = {
    messages.ReplicasStarted: _started,
    messages.ReplicaEntered: _entered,
    messages.ReplicaReturned: _returned,
    messages.Events: _events,
    messages.Done: _done,
}
"""Every message of an agent that has a time."""
