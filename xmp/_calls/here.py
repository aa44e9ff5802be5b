"""Run the function of ``nprocs=1`` in the calling process, for debuggers and profilers."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from xmp import _inside
from xmp._inside import breakpoint
from xmp._os import ports, signals
from xmp._os.excepthook import excepthook_kept
from xmp._plan import planner
from xmp._plan.runtime_choice import concerns
from xmp._processes import Results, StartTimeline, Timeline, event_stream, seed_all
from xmp._words.framework import Framework
from xmp._words.replica_info import ReplicaInfo
from xmp._words.types import Observer, Request

from .host import host_facts, plan_for, refuse_unready, with_uses

if TYPE_CHECKING:
    from xmp._processes import EventStream

__all__ = ["run_here"]


def run_here(
    request: Request,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    seed: int | None,
    observer: Observer | None = None,
) -> Results[Any] | None:
    """Run ``fn`` as the only replica; the caller restores the environment afterwards.

    Return None, with nothing begun, in a job of several hosts: nothing could end ``fn`` in this
    process when another host fails, so that launch needs the engine.
    """
    called = time.monotonic_ns()
    known = host_facts()
    request = with_uses(request, fn, known)
    draft = plan_for(request, known)
    if draft.meeting is not None:
        return None
    refuse_unready(draft)
    with ports.lease(draft.needs) as lease:
        with signals.deferred():
            plan = planner.plan(request, known, lease.ports)
        replica = plan.hosts[0].replicas[0]
        for name in replica.unset:
            os.environ.pop(name, None)
        os.environ.update(replica.set)
        info = ReplicaInfo(
            rank=replica.rank,
            local_rank=replica.local_rank,
            world_size=plan.world_size,
            local_world_size=1,
            host_index=plan.hosts[0].index,
            runtime=plan.runtime,
            device=replica.device,
            settings=dict(replica.settings),
            descriptors={name: os.dup(fd) for name, fd in lease.descriptors.items()},
        )
        timeline, telling = Timeline(called=called), event_stream(observer)
        with _noted(plan.choice), nullcontext() if telling is None else telling.here(called, plan):
            value = _inside_here(
                plan.framework, info, seed, timeline, lambda: fn(info.rank, *args, **kwargs),
                _listeners(telling, observer, called),
            )  # fmt: skip
    return Results({replica.rank: value}, StartTimeline({replica.rank: timeline}))


def _inside_here(
    module: str,
    info: ReplicaInfo,
    seed: int | None,
    timeline: Timeline,
    call: Callable[[], Any],
    listeners: Sequence[Callable[..., None]],
) -> Any:
    def say(name: str, words: str = "") -> None:
        for listener in listeners:
            listener(name, info.rank, os.getpid(), words)

    with _end_reported(say), excepthook_kept():
        say("joining")
        framework = _entered(module, info) if module else None
        _inside.install(info, framework, None, is_alone=True)
        try:
            if seed is not None:
                seed_all(seed)
            say("running")
            timeline.entered = time.monotonic_ns()
            with breakpoint.in_this_process(), signals.apart():
                return call()
        finally:
            timeline.left = time.monotonic_ns()
            _inside.uninstall()
            if framework is not None:
                framework.leave()


@contextmanager
def _noted(choice: str) -> Iterator[None]:
    """Add a note on the runtime's choice to an exception of the user's, from Python 3.11 on."""
    try:
        yield
    except Exception as error:
        said = " ".join(each for each in error.args if isinstance(each, str))
        if concerns(said) and choice and hasattr(error, "add_note"):
            error.add_note(choice)
        raise


def _entered(module: str, info: ReplicaInfo) -> Framework:
    try:
        enter: Callable[[ReplicaInfo], Framework] = importlib.import_module(module).enter
    except BaseException:
        for descriptor in info.descriptors.values():
            os.close(descriptor)  # `enter` would have taken them
        raise
    return enter(info)


def _listeners(
    telling: EventStream | None, observer: Observer | None, called: int
) -> list[Callable[..., None]]:
    listeners: list[Callable[..., None]] = [] if telling is None else [telling.say]
    if observer is not None and observer.progress:
        from xmp._processes import said_here

        listeners.append(said_here(called))
    return listeners


@contextmanager
def _end_reported(say: Callable[..., None]) -> Iterator[None]:
    """Report how the block ends, as a replica does; what precedes the function may raise, too."""
    try:
        yield
    except BaseException as error:
        say("raised", f"{type(error).__name__}: {error}")
        raise
    say("returned")
