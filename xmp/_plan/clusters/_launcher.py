"""The type of a row in the table of launchers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

__all__ = ["HOSTS", "Launcher"]

HOSTS = "set NNODES, NODE_RANK and MASTER_ADDR on each host and start the program on all of them"
"""What to do for one job of all hosts, whatever has started them."""


@dataclass(frozen=True, eq=False)
class Launcher:
    """A launcher, and the names of its variables; an empty name where it sets none for a fact.

    By ``rank`` and ``world``, xmp's functions describe the process, and a launch in each of several
    on a host is refused. By more processes than ``local_world``, by ``hosts``, or by ``lists``, a
    launch on this host alone is refused. By ``no_address``, it is part of a launch on all hosts.
    """

    name: str
    """What messages call it."""
    rank: str = ""
    """The index of this process among those of all hosts."""
    world: str = ""
    """How many processes there are on all hosts."""
    local_rank: str = ""
    """The index of this process among those of this host."""
    local_world: str = ""
    """How many processes there are on this host."""
    host: str = ""
    """The index of this host."""
    hosts: str = ""
    """How many hosts there are."""
    address: str = ""
    """The address of host 0."""
    port: str = ""
    """The port where the processes meet on host 0."""
    mark: str = ""
    """A variable without which ``hosts`` is another program's: NHOSTS is a common word."""
    job: tuple[str, ...] = ()
    """What it calls the job, the same on all hosts; several are joined with dots."""
    lists: tuple[tuple[str, Callable[[str], Iterable[str]]], ...] = ()
    """Variables that list the job's hosts, each with a function that reads its text."""
    more: tuple[str, ...] = ()
    """Other variables that are read (names, or prefixes ending in ``*``)."""
    drops: tuple[str, ...] = ()
    """What describes its own process, and no replica may inherit: names, or prefixes."""
    family: str = ""
    """What it is called together with others of its kind; ``name`` where it is empty."""
    advice: str = HOSTS
    """How it starts one process on each host, or what to do instead."""
    announced: str = ""
    """The same where only numbers of processes are known; ``advice`` where it is empty."""
    no_address: str = ""
    """What is wrong where no variable has the address of host 0, and how to pass MASTER_ADDR.

    A row with this text places hosts: where it has started one process on each, xmp starts the
    replicas of that host. They meet at MASTER_ADDR, else at ``address``, else on the first host of
    a scheduler's list.
    """
    source: str = ""
    """Where the variables were looked up: project, file, version."""

    @property
    def numbers(self) -> tuple[str, ...]:
        """The variables that count processes and hosts."""
        names = (self.rank, self.world, self.local_rank, self.local_world, self.host, self.hosts)
        return tuple(filter(None, names))

    @property
    def names(self) -> tuple[str, ...]:
        """All its variables: names, or prefixes ending in ``*``."""
        single = (*self.numbers, self.address, self.port, self.mark)
        names = (*single, *self.job, *(name for name, _ in self.lists), *self.more, *self.drops)
        return tuple(filter(None, names))

    @property
    def kind(self) -> str:
        """The name of its kind."""
        return self.family or self.name

    def job_in(self, env: Mapping[str, str]) -> str:
        """Return what it calls the job; empty where it has no name."""
        return ".".join(filter(None, map(env.get, self.job)))
