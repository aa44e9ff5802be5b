"""How a launch ends that an exception of the program ends: in order, and with nothing left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from xmp._os import log, signals
from xmp._os.log import say
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.launch import Interrupt, Kill, Pause, Resume, Stop
from xmp._processes.report.stack_texts import ranks
from xmp._processes.terminal.console import in_notebook, signals_of_the_user

from .launch_registry import preempt_all

if TYPE_CHECKING:
    from .outcome import Outcome
    from .preemption import Sigterm

__all__ = ["in_order", "while_waiting"]

_ANSWER_WAIT = 5.0
_QUIET = 1.0
"""Seconds in which a launch may end before xmp says what it waits for."""


class Endable(Protocol):
    """A launch that runs."""

    grace: float
    finished: bool
    outcome: Outcome
    sigterm: Sigterm

    def take_in(self, until: Callable[[], bool], seconds: float) -> None: ...

    def ask(self, message: Message) -> None: ...

    def end_within(self, seconds: float) -> None: ...


class Waiting(Endable, Protocol):
    """A launch that a thread waits for."""

    def print_stacks(self) -> None: ...


@contextmanager
def _ends_with_exceptions(launch: Endable, owned: bool) -> Iterator[None]:
    """End the launch in order when an exception leaves the block that waits for it.

    Where something else may wait for it again, only KeyboardInterrupt and SystemExit end it.
    """
    try:
        yield
    except BaseException as error:
        ends = owned or isinstance(error, (KeyboardInterrupt, SystemExit))
        if ends and not launch.finished:
            with signals.deferred():
                launch.outcome.ended_by = f"{type(error).__name__} was raised in the launcher"
                in_order(launch, error)
                launch.sigterm.carry_out(launch.outcome)
        raise


@contextmanager
def while_waiting(
    launch: Waiting, owned: bool, by_signal: Callable[[Interrupt | Pause | Resume], None]
) -> Iterator[None]:
    """Handlers of the program run where xmp waits, and an exception of one ends the launch.

    Also one of a handler that runs when the waiting is over, and the program has its handlers back.
    """
    with (
        _ends_with_exceptions(launch, owned),
        signals.deferred(),
        signals_of_the_user(by_signal, launch.print_stacks, preempt_all),
        _ends_with_exceptions(launch, owned),
    ):
        yield


def in_order(launch: Endable, why: BaseException) -> None:
    """End the replicas, and say in the exception of a Ctrl-C where they were."""
    try:
        _end(launch, why)
    except BaseException as error:
        launch.outcome.say_where(error)
        raise
    launch.outcome.say_where(why)


def _end(launch: Endable, why: BaseException) -> None:
    """End the replicas: SIGINT or SIGTERM, grace, SIGKILL; at once after another Ctrl-C.

    Any other exception meanwhile, as of an alarm that repeats, does not shorten the grace, and is
    printed once: the caller gets ``why``.
    """
    end = time.monotonic() + launch.grace + 2 * _ANSWER_WAIT
    quiet: float | None = time.monotonic() + min(_QUIET, launch.grace)
    printed = {type(why)}
    launch.ask(Interrupt() if isinstance(why, KeyboardInterrupt) else Stop())
    while not launch.finished:
        try:
            if quiet is not None:
                launch.take_in(lambda: False, max(0.0, quiet - time.monotonic()))
                quiet = None
                if not launch.finished:
                    _say_what_it_waits_for(launch, why)
            launch.end_within(max(0.0, end - time.monotonic()))
        except KeyboardInterrupt:
            with signals.blocked():
                launch.ask(Kill())
                launch.end_within(_ANSWER_WAIT)
            raise
        except BaseException as error:
            if time.monotonic() >= end:
                raise
            if type(error) not in printed:
                printed.add(type(error))
                first = type(why).__name__
                log.warning(f"{error!r} was raised while xmp ended the launch after {first}")


def _say_what_it_waits_for(launch: Endable, why: BaseException) -> None:
    processes = launch.outcome.processes.values()
    left = [process.rank for process in processes if process.reported is None]
    if left:
        again = isinstance(why, KeyboardInterrupt)
        key = "interrupting" if in_notebook() else "Ctrl-C"
        rest = f"; {key} again kills them at once" if again else ""
        say(f"xmp: waiting for {ranks(left)} to end, {launch.grace:g} s at most (grace=){rest}")
