"""Handlers, listeners and finalizers of the program that use xmp while it starts or waits."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

import xmp
from tests.support.launching import SlowToPickle, launch, never_returns, who_by_reference
from xmp._os import signals
from xmp._payload import map_file, pack
from xmp._processes.system import linux

pytestmark = pytest.mark.failing


@pytest.fixture(autouse=True)
def answers_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that waits for an answer in vain outlasts the time of a test."""
    monkeypatch.setattr("xmp._rules.ending_rules.ANSWER_WAIT", 600 * 10**9)
    monkeypatch.setattr("xmp._processes.launcher.supervised._ANSWER_WAIT", 600.0)


def waits(rank: int) -> None:
    never_returns()


def test_a_handler_ends_the_launch_that_the_thread_joins(
    method: str, at: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    context = launch(method, waits, join=False)
    at(0.2, context.terminate)
    with pytest.raises(xmp.ReplicaDied):
        context.join()
    assert "does not answer" not in capfd.readouterr().err


def test_a_handler_gets_the_stacks_of_the_launch_that_the_thread_joins(at: Any) -> None:
    context, took = launch("forkserver", waits, join=False), []

    def take() -> None:
        took.append(context.stacks())

    at(0.2, take)
    assert not context.join(1.0)
    context.terminate()
    (stacks,) = took
    assert sorted(stacks) == [0, 1]
    assert all("in waits" in text for text in stacks.values())


def test_a_handler_launches_while_a_launch_waits_for_its_template(at: Any) -> None:
    xmp.shutdown()
    inner: list[Any] = []
    at(0.05, lambda: inner.append(list(launch("forkserver", who_by_reference))))
    assert [rank for rank, *_ in launch("forkserver", who_by_reference)] == [0, 1]
    assert [[rank for rank, *_ in each] for each in inner] == [[0, 1]]


def test_a_handler_launches_while_arguments_are_pickled(at: Any) -> None:
    inner: list[Any] = []
    at(0.05, lambda: inner.append(list(launch("forkserver", who_by_reference))))
    assert len(launch("forkserver", who_by_reference, SlowToPickle(lambda: bool(inner)))) == 2
    assert len(inner[0]) == 2


def test_an_event_listener_asks_the_launch_that_it_hears_of() -> None:
    known: list[Any] = []
    seen = []

    def listen(event: xmp.Event) -> None:
        if event.name == "running" and known:
            seen.append(sorted(known[0].stacks()))
            known.pop().terminate()

    context = launch("forkserver", waits, join=False, events=listen)
    known.append(context)
    with pytest.raises(xmp.ReplicaDied):
        context.join()
    assert len(seen) == 1


def stop_by_collection(context: Any) -> Iterator[None]:
    def collected(phase: str, _: object) -> None:
        gc.callbacks.remove(collected)
        context.terminate()

    gc.callbacks.append(collected)
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    yield
    gc.set_threshold(*thresholds)


def stop_by_finalizer(context: Any) -> Iterator[None]:
    class Node:
        pass

    one, two = Node(), Node()
    one.other, two.other = two, one  # type: ignore[attr-defined]
    weakref.finalize(one, context.terminate)
    thresholds = gc.get_threshold()
    del one, two
    gc.set_threshold(1)
    yield
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize("way", [stop_by_collection, stop_by_finalizer])
def test_the_collector_ends_the_launch_that_the_thread_joins(way: Any) -> None:
    context = launch("forkserver", waits, join=False)
    stop = way(context)
    next(stop)
    with pytest.raises(xmp.ReplicaDied):
        context.join()
    next(stop, None)


def test_what_the_successor_of_a_handler_raises_is_known_as_a_handlers() -> None:
    """Of one that is set while code of the program runs, as the unpickling of a result."""
    ended = RuntimeError("the second signal")

    def second(*_: object) -> None:
        raise ended

    before = signal.signal(signal.SIGUSR1, lambda *_: signal.signal(signal.SIGUSR1, second))
    try:
        with signals.deferred():
            with signals.as_usual():
                signal.raise_signal(signal.SIGUSR1)
                with pytest.raises(RuntimeError) as caught:
                    signal.raise_signal(signal.SIGUSR1)
            assert signals.from_handler(caught.value)
        assert signal.getsignal(signal.SIGUSR1) is second
    finally:
        signal.signal(signal.SIGUSR1, before)


class Swallows:
    """Pickled by code that takes the exception of a handler for its own."""

    def __reduce__(self) -> tuple[Any, ...]:
        with contextlib.suppress(OSError):
            signal.raise_signal(signal.SIGALRM)
        return Swallows, ()


@contextlib.contextmanager
def alarms_that_raise() -> Iterator[TimeoutError]:
    ended = TimeoutError("the alarm of the program")

    def alarm(*_: object) -> None:
        raise ended

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        yield ended
    finally:
        signal.signal(signal.SIGALRM, before)


def test_what_a_handler_raises_is_not_lost_while_arguments_are_pickled() -> None:
    with alarms_that_raise() as ended, signals.deferred():
        with pytest.raises(TimeoutError) as caught:
            pack(who_by_reference, (Swallows(),), {}, linux.memory_file)
        assert caught.value is ended


def test_nor_where_xmp_looks_for_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """``os.path.isfile`` takes every OSError for a missing file, and TimeoutError is one."""

    def looks() -> None:
        with contextlib.suppress(OSError):
            signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr("xmp._payload.pickler.main_source", looks)
    with alarms_that_raise() as ended, signals.deferred():
        with pytest.raises(TimeoutError) as caught:
            pack(who_by_reference, (), {}, linux.memory_file)
        assert caught.value is ended


def test_a_signal_from_before_is_heard_where_code_of_the_program_begins(at: Any) -> None:
    """A result is loaded while a message is taken in, and that may take long.

    Not at the end of a replica: each step of it is to run, whatever has come before.
    """
    heard = []
    at(0, lambda: heard.append("heard"))
    with signals.deferred(), signals.blocked():
        signal.raise_signal(signal.SIGUSR1)
        assert not heard
        with signals.as_usual(insists=True):
            assert heard == ["heard"]
        signals.guard.keeps = True
        try:
            signal.raise_signal(signal.SIGUSR1)
            with signals.as_usual():
                assert heard == ["heard"]
        finally:
            signals.guard.keeps = False
    assert heard == ["heard"] * 2


def test_code_that_is_called_for_the_program_may_catch_what_its_handler_raises() -> None:
    """``env=`` and ``events=`` are functions of the user's, with their own alarms."""
    with alarms_that_raise(), signals.deferred(), signals.as_usual():
        with contextlib.suppress(TimeoutError):
            signal.raise_signal(signal.SIGALRM)


def test_no_python_code_runs_when_a_large_result_is_freed() -> None:
    """What an alarm raised in the callback of a weak reference would be lost."""
    descriptor, calls = linux.memory_file("result"), []
    os.truncate(descriptor, 1 << 20)
    mapped = map_file(descriptor, 1 << 20)
    os.close(descriptor)
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code) if event == "call" else None)
    del mapped
    sys.setprofile(None)
    assert calls == []


# --- the end of a scope ---------------------------------------------------------------------------


class Late(Exception):
    pass


def raises_late(number: int, frame: object) -> None:
    raise Late


def at_call(wanted: int) -> Any:
    """Return a trace function that raises SIGALRM as ``restore``, or what it calls, is entered."""
    calls = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal calls
        if frame.f_code.co_name in ("restore", "<listcomp>", "_set") and event == "call":
            if calls == wanted:
                signal.raise_signal(signal.SIGALRM)
            calls += 1

    return trace


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_handler_that_raises_as_a_scope_ends_leaves_nothing_half_done(
    number: signal.Signals,
) -> None:
    """Python looks for signals at each entry: some handlers are back then, others are not."""
    before = {n: signal.getsignal(n) for n in (number, signal.SIGALRM)}
    raised = 0
    try:
        for wanted in range(8):
            signal.signal(number, print)
            signal.signal(signal.SIGALRM, raises_late)
            try:
                with signals.deferred():
                    sys.settrace(at_call(wanted))
            except Late:
                raised += 1
            finally:
                sys.settrace(None)
            assert signal.getsignal(number) is print, wanted
            assert signal.getsignal(signal.SIGALRM) is raises_late, wanted
            assert (signals.guard.theirs, signals.guard.mode) == ({}, signals._AS_USUAL), wanted
            assert not signals.guard.noted, wanted
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert raised > 2
