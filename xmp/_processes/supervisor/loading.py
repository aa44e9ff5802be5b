"""Gives the supervisor the launcher's state and loads the call, once for all replicas."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import sys
from dataclasses import dataclass

from xmp._payload import Image, load
from xmp._payload.script import import_main, main_is_shared
from xmp._processes.messages import launch, launcher_state
from xmp._processes.messages.order import LaunchOrder
from xmp._processes.messages.outcomes import pack_exception
from xmp._processes.replica import breakpoints
from xmp._processes.replica.role import LoadedCall
from xmp._processes.report.tracebacks import format_error, message_of, name_of
from xmp._processes.system import environment_changes, finalisation, fork_safety, stdio
from xmp._processes.system.variables_read import VariablesRead, differs
from xmp._words.errors import PlanError

__all__ = ["CannotFork", "Received", "load_call"]


@dataclass(frozen=True)
class Received:
    """The launcher's order, and the descriptors that came with it by their purpose."""

    order: LaunchOrder
    at: int
    """When the order came, in monotonic nanoseconds."""
    streams: list[int]
    image: Image
    tracker: int | None
    leases: dict[str, int]
    arguments: list[int]

    @classmethod
    def of(cls, order: LaunchOrder, descriptors: list[int], at: int) -> Received:
        """Sort the descriptors by purpose, in the order that ``LaunchOrder`` lists."""
        streams, rest = descriptors[:3], descriptors[3:]
        image = order.take_image(rest)
        tracker = rest.pop(0) if order.call.state.tracker else None
        leases = dict(zip(order.leases, rest, strict=False))
        return cls(order, at, streams, image, tracker, leases, rest[len(leases) :])


class CannotFork(Exception):
    """No replica can be forked from this process; ``message`` reports why."""

    def __init__(self, message: launch.LoadFailed | launch.UnsafeToFork) -> None:
        super().__init__(message)
        self.message = message


def load_call(received: Received, inherited: LoadedCall | None) -> LoadedCall | None:
    """Take the launcher's state and load the call. Return None if each replica loads it itself.

    Raises CannotFork. Under ``start_method="fork"`` the call itself is ``inherited``.
    """
    order = received.order
    inherits = order.method == "inherit"
    if inherits:
        main_is_shared(True)
    else:
        launcher_state.apply(order.call.state, received.tracker)
    stdio.take_streams(received.streams)
    _set_up_logging(order)
    breakpoints.install()
    if order.call.cell:
        from xmp._processes.replica import notebook

        notebook.install()
    if order.method == "exec":
        return None
    faulthandler.enable(
        2
    )  # unpickling runs any code, which may crash; replicas have their own file
    sockets = fork_safety.connected_sockets()
    while_loading = environment_changes.while_loading(order.rules)
    os.environ.update(while_loading)
    try:
        call = inherited if inherits else _loaded(received)
        _set_up_logging(order)  # modules that the call has imported may have set levels
        if order.framework:
            importlib.import_module(order.framework)
    except BaseException as error:
        words = f"{name_of(error)}: {message_of(error)}"
        failed = launch.LoadFailed(format_error(error), words, pack_exception(error)[0])
        raise CannotFork(failed) from None
    culprits = fork_safety.culprits(order.rules, sockets, inherits)
    culprits += fork_safety.left_in_template
    if culprits and not inherits:
        raise CannotFork(launch.UnsafeToFork(culprits))
    if not inherits:
        environment_changes.restore_environment(while_loading, order.call.state.environment)
    launcher_state.restore_signals(order.call.state)
    finalisation.before_fork()
    gc.freeze()  # a collection in a replica would unshare the pages of objects loaded here
    return call


def _set_up_logging(order: LaunchOrder) -> None:
    if order.call.logging is not None:
        from xmp._processes.messages import logging_setup

        logging_setup.apply(order.call.logging)


def _loaded(received: Received) -> LoadedCall | None:
    """Load the call. Raise PlanError if that reads a variable of which each replica has its own."""
    names = received.order.env_by_rank
    if not names:
        return _load(received)
    read = VariablesRead()
    with read.noted():
        call = _load(received)
    if name := read.first_of(names):
        raise PlanError(differs(name, "what the function needs"), code="XMP-P05")
    return call


def _load(received: Received) -> LoadedCall | None:
    order = received.order
    if order.call.main is not None and "__mp_main__" not in sys.modules:
        import_main(order.call.main)
    return None if order.call.touches_device else load(received.image, received.arguments)
