"""Engines: each finds hosts, starts an agent on each of them, and carries bytes to and from it.

What travels (``messages/hosts``), what an agent does (``agent``) and the driver's handle (``job``)
are the same for all engines. A new engine is one module and one row in its table.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, cast

from xmp._errors import PlanError

if TYPE_CHECKING:
    from xmp._processes import Call, Results
    from xmp._processes.messages.catalog import Message
    from xmp._types import JobPlan, Request

    from .job import Job

__all__ = ["ENGINES", "Agent", "Engine", "checked", "launch"]

ENGINES = {"local": "xmp._engines.local"}
"""The module of each engine, whose ``engine`` is one."""


class Agent(Protocol):
    """The agent of one host, as its engine reaches it."""

    index: int
    name: str
    """What the host is called in errors and prefixes."""
    address: str
    pid: int

    def fileno(self) -> int:
        """Readable when there is something to receive."""

    def readable(self) -> bool: ...

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send without waiting for the agent; Closed if it has ended."""

    def recv(self) -> tuple[Message, list[int]]:
        """The next message, with the files that hold large results; Closed after the last one."""

    def kill(self) -> None:
        """End it at once, with all that it has started."""

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it (SIGSTOP)."""

    def how_it_ended(self) -> str:
        """For a person: "was killed by SIGKILL"."""

    def end(self) -> None:
        """It has no more to do: close the channel, and wait until it has ended."""

    def drop(self) -> None:
        """In a forked child of the driver: close the channel."""


class Engine(Protocol):
    """Where hosts come from."""

    name: str

    def addresses(self, count: int) -> tuple[str, ...]:
        """The addresses of so many hosts, the first one for their meeting; PlanError if too many.

        No process exists yet.
        """

    def refuse(self, plan: JobPlan) -> None:
        """Raise PlanError for a plan of host 0 that the hosts cannot carry out."""

    def settled(self, request: Request, plan: JobPlan) -> Request:
        """The request, with what follows from where the hosts are."""

    def start(self, addresses: Sequence[str], cell: bytes) -> list[Agent]:
        """Start an agent on each host; raises StartError, and leaves none behind then.

        ``cell``: in a notebook, the mark before each display in standard output.
        """


def checked(hosts: object, engine: object) -> tuple[int, str]:
    """``hosts`` and ``engine`` of ``launch``; raises PlanError and TypeError."""
    names = ", ".join(repr(name) for name in ENGINES)
    if engine is not None and not isinstance(engine, str):
        kind = type(engine).__name__
        raise TypeError(f"engine must be one of {names}, or None, not {kind}: {engine!r}")
    if engine is None:
        raise PlanError(
            f"hosts={hosts!r} without engine=: say what starts the function on the hosts. Allowed: "
            f"engine={names} (hosts that this machine plays, for tests). Where a scheduler starts "
            "this program on each host, give neither: the program calls xmp.spawn there"
        )
    if engine not in ENGINES:
        raise PlanError(f"engine={engine!r}: there is none of this name. Allowed: {names}")
    if hosts is None:
        raise PlanError(f"engine={engine!r} without hosts=: give the number of hosts, from 1 up")
    try:
        count = operator.index(cast(SupportsIndex, hosts))
    except TypeError:
        count = None
    if count is None or isinstance(hosts, bool):
        kind = type(hosts).__name__
        raise TypeError(f"hosts must be a whole number from 1 up, not {kind}: {hosts!r}")
    if count < 1:
        raise PlanError(f"hosts={count}: give a whole number from 1 up")
    return count, engine


def launch(
    count: int, engine: str, request: Request, call: Call, join: bool
) -> Job[Any] | Results[Any]:
    """Run the call on so many hosts of an engine, as ``xmp.launch`` describes it."""
    found: Engine = importlib.import_module(ENGINES[engine]).engine
    from .driver import launched

    return launched(found, count, request, call, join)
