"""torch elastic's own process context, as its agent uses it, with replicas of xmp."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.waiting import until


def works(rank_word: str) -> int:
    return int(rank_word) + 10


def fails(rank_word: str) -> None:
    if rank_word == "1":
        raise ValueError("no such label")
    until(lambda: False, 60)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Each context of elastic sets handlers for these, which raise, and leaves them."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def start(handlers: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """``start(fn)``: a running ``MultiprocessContext`` of two workers."""
    import torch.multiprocessing
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.api import MultiprocessContext

    def start_processes(fn: Any, args: Any, **options: Any) -> Any:
        return xmp.start_processes(fn, args, **options)

    monkeypatch.setattr(torch.multiprocessing, "start_processes", start_processes)

    def make(fn: Any) -> Any:
        logs = DefaultLogsSpecs(log_dir=str(tmp_path))
        context = MultiprocessContext(
            name="worker",
            entrypoint=fn,
            args={0: ("0",), 1: ("1",)},
            envs={0: {}, 1: {}},
            start_method="spawn",
            logs_specs=logs,
        )
        context.start()
        return context

    return make


def test_workers_that_return(start: Any) -> None:
    context = start(works)
    result = context.wait(timeout=60, period=0.1)
    assert result is not None
    assert result.return_values == {0: 10, 1: 11}
    began = time.monotonic()
    context.close()
    assert time.monotonic() - began < 5


def test_a_worker_that_fails_is_named_and_the_others_end(
    start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    context = start(fails)
    pids = list(context.pids().values())
    result = context.wait(timeout=60, period=0.1)
    assert result.is_failed()
    assert list(result.failures) == [1]
    assert result.failures[1].exitcode == 1
    began = time.monotonic()
    context.close(timeout=20)
    assert time.monotonic() - began < 10
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    caplog.clear()  # torch logs the exception, and with it its context and queues


def test_close_ends_workers_that_run(start: Any) -> None:
    context = start(fails_never)
    began = time.monotonic()
    context.close(timeout=20)
    assert time.monotonic() - began < 10


def fails_never(rank_word: str) -> None:
    until(lambda: False, 60)
