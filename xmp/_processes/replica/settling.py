"""The first steps of a child after the fork, and its exec if it becomes a fresh interpreter."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import resource
import signal
import threading
from typing import NamedTuple, NoReturn

from xmp._os import proc
from xmp._processes.system import environment_changes, linux
from xmp._processes.system.descriptors import close_all, close_from
from xmp._processes.system.interpreter import TRACING, fresh_interpreter

from .role import Changes, ChildEnds, DescriptorLayout, Role

__all__ = ["ForkState", "replace_image", "settle_in", "watch_by_thread"]


class ForkState(NamedTuple):
    """The facts about its parent that a forked replica needs."""

    pid: int
    lifeline: int
    """A pipe that ends with the parent."""
    has_exit_handlers: bool


def settle_in(role: Role, parent: ForkState, ends: ChildEnds, variables: Changes) -> None:
    """Give the child its descriptors, variables and limits, and have it end with its parent.

    ``variables`` are those of this replica only.
    """
    layout, plan = role.common.layout, role.plan
    os.dup2(ends.channel, layout.channel, inheritable=False)
    os.dup2(ends.stacks, layout.stacks, inheritable=False)
    for number, descriptor in zip((2, 1), ends.streams, strict=False):
        os.dup2(descriptor, number)
    if not role.info.descriptors:
        close_all(role.common.leases.values())
    environment_changes.change_environment(variables)
    signal.set_wakeup_fd(-1)
    # Not signal.signal, whose enums touch 20 pages.
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    os.setpgid(0, 0)
    linux.set_name(f"xmp-replica-{plan.rank}")
    armed = linux.die_with_parent(parent.pid, parent.lifeline, layout.lifeline)
    close_from(layout.above)
    if not armed:
        watch_by_thread(layout.lifeline)
    open_files = role.common.order.call.state.limits["RLIMIT_NOFILE"]
    if proc.limit(resource.RLIMIT_NOFILE) != open_files:
        resource.setrlimit(resource.RLIMIT_NOFILE, open_files)
    if plan.cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, plan.cpus)


def watch_by_thread(lifeline: int) -> None:
    """End the process group when the parent ends, by a thread: for kernels that cannot do it."""

    def wait() -> None:
        os.set_blocking(lifeline, True)
        os.read(lifeline, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name="xmp-lifeline", daemon=True).start()


def replace_image(layout: DescriptorLayout) -> NoReturn:
    """Exec a fresh interpreter that continues as this replica."""
    numbers = (layout.channel, layout.lifeline, layout.stacks)
    for descriptor in numbers:
        os.set_inheritable(descriptor, True)
    command = fresh_interpreter("xmp._processes.replica.fresh_interpreter", "main", *numbers)
    variables = dict(os.environ)
    variables.pop(TRACING, None)
    os.execve(command[0], command, variables)
