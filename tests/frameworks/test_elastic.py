"""torch elastic's own process context and its agent, with replicas of xmp."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.stage import Stage
from tests.support.waiting import until

pytestmark = pytest.mark.peers


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
    context.close()


def test_a_worker_that_fails_is_named_and_the_others_end(
    start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    context = start(fails)
    pids = list(context.pids().values())
    result = context.wait(timeout=60, period=0.1)
    assert result.is_failed()
    assert list(result.failures) == [1]
    assert result.failures[1].exitcode == 1
    context.close(timeout=600)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    caplog.clear()  # torch logs the exception, and with it its context and queues


def test_close_ends_workers_that_run(start: Any) -> None:
    context = start(fails_never)
    context.close(timeout=600)


def fails_never(rank_word: str) -> None:
    until(lambda: False, 60)


# --- its agent ------------------------------------------------------------------------------------

AGENT = """
    import json, os, signal, sys

    import torch.multiprocessing
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    import xmp

    started = []

    def train(what):
        import torch.distributed as dist
        rank, count = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
        if what == "fails" or (what == "fails once" and count == "0"):
            if rank == 1:
                raise ValueError(f"no such label, attempt {count}")
            while True:  # torch waits 30 s for a worker that SIGTERM finds in native code
                signal.pause()
        dist.init_process_group("gloo")
        total = torch.tensor([rank + 1])
        dist.all_reduce(total)
        dist.destroy_process_group()
        return [rank, int(total), int(count), os.environ["LOCAL_WORLD_SIZE"]]

    def start_processes(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
        started.append(start_method)
        return xmp.start_processes(fn, args, nprocs, join, daemon, start_method)

    def agent(method, what, restarts):
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=2, run_id=f"{method}-{what}",
            rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=restarts,
            monitor_interval=0.1, start_method=method,
        )
        try:
            return elastic_launch(config, train)(what)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            return [rank, failure.exitcode, failure.message["message"]]

    if __name__ == "__main__":
        if sys.argv[1] == "xmp":
            torch.multiprocessing.start_processes = start_processes
        said = []
        for method in sys.argv[2:]:
            said += [agent(method, "works", 0), agent(method, "fails once", 1),
                     agent(method, "fails", 0)]
        assert bool(started) is (sys.argv[1] == "xmp"), started
        print(json.dumps(said))
"""
"""Workers of ``elastic_launch``, which is torchrun without its command line."""


@pytest.mark.slow
def test_its_agent_runs_and_restarts_workers(stage: Stage) -> None:
    def ran(who: str, *methods: str) -> Any:
        return json.loads(stage.run(AGENT, who, *methods, timeout=150).out.splitlines()[-1])

    torchs = ran("torch", "fork")
    assert torchs[0] == {"0": [0, 3, 0, "2"], "1": [1, 3, 0, "2"]}
    assert torchs[1] == {"0": [0, 3, 1, "2"], "1": [1, 3, 1, "2"]}
    assert torchs[2] == [1, 1, "ValueError: no such label, attempt 0"]
    assert ran("xmp", "spawn", "fork", "forkserver") == torchs * 3
