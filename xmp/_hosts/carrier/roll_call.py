"""The roll call: which hosts have come, with which index, and whether for the same launch."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import replace

from .words import HostCard, Refusal, RollState

__all__ = ["SHOWN", "Places", "RollCall"]

SHOWN = 16
"""The most hosts that a message names."""


class RollCall:
    """The hosts of one attempt. A second card with the same index is refused until ``left``."""

    def __init__(self, hosts: int, attempt: int, names: Sequence[str] = ()) -> None:
        """Begin a roll call. ``names`` are the scheduler's names of the hosts, as far as known."""
        self.hosts = hosts
        self._names = names
        self.attempt = attempt
        self.cards: dict[int, HostCard] = {}

    def complete(self) -> bool:
        return len(self.cards) == self.hosts

    def came(self, card: HostCard) -> Refusal | None:
        """Take a card. Return a Refusal if it does not fit the job or an earlier card."""
        if not 0 <= card.index < self.hosts or card.hosts != self.hosts:
            return Refusal(self._of_another_size(card), plan=True)
        twin = self.cards.get(card.index)
        if twin is not None:
            return Refusal(
                f"two hosts have the index {card.index}: {twin.name} and {card.name}. Each host of "
                f"a job needs its own, from 0 to {self.hosts - 1} (NODE_RANK)",
                plan=True,
            )
        first = next(iter(self.cards.values()), None)
        self.cards[card.index] = card
        return None if first is None else _difference(first, card)

    def left(self, index: int) -> None:
        """Forget a host whose connection ended before the launch began: it may come again."""
        self.cards.pop(index, None)

    def state(self) -> RollState:
        """Return which hosts are here and which are missing."""
        absent = [index for index in range(self.hosts) if index not in self.cards]
        here = tuple(f"{i} ({self.cards[i].name})" for i in sorted(self.cards)[:SHOWN])
        missing = tuple(self._name(index) for index in absent[:SHOWN])
        first = self.cards[0].name if 0 in self.cards else ""
        return RollState(here, missing, len(absent), first=first, attempt=self.attempt)

    def _name(self, index: int) -> str:
        """Return "2 (t1v-n-2)" if the scheduler has named the host, else "2"."""
        name = self._names[index] if index < len(self._names) else ""
        return f"{index} ({name})" if name else str(index)

    def overdue(self, seconds: float, note: str = "") -> Refusal:
        """Return the refusal when hosts have not come in time; ``note``: a possible reason."""
        who = missing(replace(self.state(), note=note), self.hosts)
        return Refusal(
            f"{who}. xmp waited {seconds:g} s for all hosts of the job; start_timeout= is the limit"
        )

    def full(self, name: str) -> Refusal:
        """Return the refusal for a host without an index when all indices have been given."""
        here = ", ".join(self.state().here) or "others"
        return Refusal(
            f"{name} came when all {self.hosts} hosts of the job had come: {here}. Was the command "
            "started once too often, or should --nnodes be larger on all hosts?",
            late=True,
        )

    def _of_another_size(self, card: HostCard) -> str:
        return (
            f"{card.name} came as host {card.index} of {card.hosts}, but host 0 was started for a "
            f"job of {self.hosts}: give all hosts the same NNODES, and each its own NODE_RANK from "
            f"0 to {self.hosts - 1}"
        )


def missing(call: RollState, hosts: int) -> str:
    """Return "hosts 2, 3 of 4 have not come; 0 (t1v-n-0), 1 (t1v-n-1) are here"."""
    more = call.absent - len(call.missing)
    names = _listed(call.missing, more)
    have = "host {} of {} has" if call.absent == 1 else "hosts {} of {} have"
    others = hosts - call.absent - len(call.here)
    verb = "is" if len(call.here) + others == 1 else "are"
    note = f"; {call.note}" if call.note else ""
    return f"{have.format(names, hosts)} not come; {_listed(call.here, others)} {verb} here{note}"


def _listed(names: Sequence[str], more: int) -> str:
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _difference(first: HostCard, other: HostCard) -> Refusal | None:
    """Return a Refusal that names the first difference between two cards that must not be."""
    for what, advice, of_first, of_other in _compared(first, other):
        if of_first != of_other:
            return Refusal(
                f"the hosts do not fit together: {what} is {of_first} on host {first.index} "
                f"({first.name}) and {of_other} on host {other.index} ({other.name}); {advice}",
                plan=True,
            )
    return None


def _compared(first: HostCard, other: HostCard) -> list[tuple[str, str, object, object]]:
    """Return, for each value that must be equal: its name, advice if it differs, both values."""
    install = "install the same version on all hosts; its first two numbers must be equal"
    same = "give all hosts the same"
    return [
        ("xmp", install, _minor(first.xmp), _minor(other.xmp)),
        ("Python", install, _minor(first.python), _minor(other.python)),
        ("the framework", "use one framework, in one version", first.framework, other.framework),
        ("nprocs", f"{same} number of replicas", first.replicas, other.replicas),
        ("max_restarts", f"{same} max_restarts=", first.max_restarts, other.max_restarts),
        (
            "the number of restarts",
            "start the job again on all hosts",
            first.restart,
            other.restart,
        ),
    ]


def _minor(version: str) -> str:
    """Return the part of a version that must be equal: "3.11" of "3.11.7"."""
    return ".".join(version.split(".")[:2])


class Places:
    """The index of each host, from 1 up: host 0 has the coordinator. A host keeps its index."""

    def __init__(self, hosts: int) -> None:
        self._hosts = hosts
        self._given: dict[Hashable, int] = {}

    def __iter__(self) -> Iterator[Hashable]:
        return iter([*self._given])

    def give(self, host: Hashable, wanted: int = -1, others: Collection[int] = ()) -> int:
        """Return the index of a host, giving it one if it has none; 0 if that is not possible.

        ``wanted`` is the index that the host had on an earlier connection: it gets that one or 0.
        Otherwise it gets the lowest free one. ``others`` are the indices of hosts that have come
        with their own.
        """
        if host not in self._given:
            used = {0, *others, *self._given.values()}
            possible = (wanted,) if wanted > 0 else range(1, self._hosts)
            free = (index for index in possible if index not in used and index < self._hosts)
            index = next(free, 0)
            if not index:
                return 0
            self._given[host] = index
        return self._given[host]

    def left(self, host: Hashable) -> None:
        """Free the index of a host that has gone, for the next one."""
        self._given.pop(host, None)
