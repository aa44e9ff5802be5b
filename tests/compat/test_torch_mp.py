"""``xmp.compat.torch_mp``: torch's names and defaults, and what they do here."""

from __future__ import annotations

import importlib
import inspect
import itertools
import multiprocessing
import multiprocessing.connection
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.lazily import lazily
from tests.support.stage import Script, Stage
from tests.support.torchrun import without_abort
from tests.support.waiting import until

mp = lazily("xmp.compat.torch_mp")

from_here: list[int] = []


def ends_in_turn(index: int, folder: Path) -> None:
    until((folder / f"go{index}").exists, 60)


def says_who(index: int, queue: Any) -> None:
    program, parents = (Path(f"/proc/{pid}/cmdline").read_text() for pid in ("self", os.getppid()))
    queue.put((index, os.getpid(), from_here[:], program == parents))


def who(nprocs: int = 2, **options: Any) -> list[Any]:
    method = options.get("start_method", "spawn")
    queue = multiprocessing.get_context("fork" if method == "fork" else "spawn").SimpleQueue()
    assert options.pop("start", mp.start_processes)(says_who, (queue,), nprocs, **options) is None
    said = sorted(queue.get() for _ in range(nprocs))
    queue.close()
    return said


# --- the names ------------------------------------------------------------------------------------


def test_names_signatures_and_defaults_are_torchs() -> None:

    torchs = importlib.import_module("torch.multiprocessing.spawn")
    import xmp.compat.torch_mp as mp

    assert set(torchs.__all__) == set(mp.__all__)
    for name in ("spawn", "start_processes"):
        here, there = (inspect.signature(getattr(m, name)).parameters for m in (mp, torchs))
        assert {n: p.default for n, p in here.items()} == {n: p.default for n, p in there.items()}
        assert list(here) == list(there)
    for name in ("join", "pids", "processes", "sentinels"):
        assert hasattr(mp.ProcessContext, name)
    joins = (inspect.signature(c.ProcessContext.join).parameters for c in (mp, torchs))
    here, there = ({n: p.default for n, p in each.items()} for each in joins)
    assert here == there


def test_every_other_name_is_torchs_own() -> None:
    import torch.multiprocessing as torchs

    assert mp.get_context == torchs.get_context
    assert mp.Queue == torchs.Queue
    assert mp.set_sharing_strategy is torchs.set_sharing_strategy
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = mp.no_such_name


def test_the_import_brings_no_torch(script: Script) -> None:
    done = script("import sys, xmp.compat.torch_mp\nprint('torch' in sys.modules)\n")
    assert done.out == "False\n"


# --- spawn and start_processes --------------------------------------------------------------------


def test_one_process_is_a_process() -> None:
    ((index, pid, _, _),) = who(1, start=mp.spawn)
    assert index == 0
    assert pid != os.getpid()


def test_spawn_inherits_nothing_and_forks_from_the_template() -> None:
    from_here.append(1)
    try:
        said = who(start=mp.spawn)
    finally:
        from_here.clear()
    assert [(inherited, forked) for _, _, inherited, forked in said] == [([], True)] * 2


def test_start_processes_takes_the_start_method_as_given() -> None:
    from_here.append(1)
    try:
        fresh, forked, warm = (who(start_method=name) for name in ("spawn", "fork", "forkserver"))
    finally:
        from_here.clear()
    assert [inherited for _, _, inherited, _ in (*fresh, *forked, *warm)] == [
        *([], []),
        *([1], [1]),
        *([], []),
    ]
    assert [forks for _, _, _, forks in (*fresh, *warm)] == [False, False, True, True]


def test_spawn_warns_of_another_start_method() -> None:
    with pytest.warns(FutureWarning, match="start_method='fork' changes nothing") as caught:
        mp.spawn(says_nothing, start_method="fork")
    assert caught[0].filename == __file__


def says_nothing(index: int) -> None:
    pass


def test_no_processes_are_done_at_once() -> None:
    assert mp.spawn(says_nothing, nprocs=0) is None
    with mp.start_processes(says_nothing, nprocs=0, join=False) as context:
        assert isinstance(context, mp.ProcessContext)
        assert (context.join(), context.join(timeout=3, grace_period=1)) == (True, True)
        assert (context.pids(), context.processes, context.sentinels) == ([], [], {})
        assert (list(context.results()), context.stacks()) == ([], {})
        context.terminate()


def test_exceptions_that_a_program_makes_are_torchs_too() -> None:
    torchs = importlib.import_module("torch.multiprocessing.spawn")  # spawn is a function, too
    raised, died = mp.ProcessRaisedException("x", 0, 1), mp.ProcessExitedException("y", 0, 1, 3)
    assert isinstance(raised, torchs.ProcessRaisedException)
    assert isinstance(died, torchs.ProcessExitedException)
    assert (str(raised), raised.error_index, raised.error_pid, died.exit_code) == ("x", 0, 1, 3)
    again = pickle.loads(pickle.dumps(raised))
    assert isinstance(again, (torchs.ProcessRaisedException, mp.ProcessRaisedException))
    assert again.args == ("x",)
    assert not isinstance(mp.ProcessException("z", 0, 1), torchs.ProcessRaisedException)


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(xmp.PlanError, match="nprocs=-1"):
        mp.spawn(says_nothing, nprocs=-1)
    with pytest.raises(TypeError, match="says_nothing"):
        mp.spawn(says_nothing, (1,))


# --- the context ----------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["xmp", pytest.param("torch", marks=pytest.mark.peers)])
def test_join_returns_when_one_more_has_ended(start: str, tmp_path: Path) -> None:
    if start == "xmp":
        context: Any = mp.spawn(ends_in_turn, (tmp_path,), nprocs=3, join=False)
    else:
        import torch.multiprocessing as torchs

        context = torchs.start_processes(
            ends_in_turn, (tmp_path,), nprocs=3, join=False, start_method="fork"
        )
    assert sorted(context.sentinels.values()) == [0, 1, 2]
    assert context.join(timeout=0.1) is False
    for index in (2, 0, 1):
        assert index in context.sentinels.values()
        (tmp_path / f"go{index}").touch()
        (ready,) = multiprocessing.connection.wait(context.sentinels, timeout=30)
        assert context.sentinels[ready] == index
        assert context.join() is (index == 1)
        assert index not in context.sentinels.values()
    assert context.join() is True
    assert [process.exitcode for process in context.processes] == [0, 0, 0]


def test_results_are_not_sent() -> None:
    context = mp.spawn(lambda index: multiprocessing.Lock(), nprocs=2, join=False)
    while not context.join():
        pass
    assert list(context.results()) == [None, None]


def test_the_old_name_of_the_context(tmp_path: Path) -> None:
    with mp.spawn(ends_in_turn, (tmp_path,), nprocs=2, join=False) as context:
        assert isinstance(context, mp.SpawnContext)
        assert isinstance(context, xmp.ProcessContext)


def test_an_editor_is_offered_what_it_passes_on() -> None:
    import torch.multiprocessing

    face = importlib.import_module("xmp.compat.torch_mp")
    offered = dir(face)
    assert {"get_context", "Queue", "spawn", "SpawnContext", "__doc__"} <= {*offered}
    assert {name for name in dir(torch.multiprocessing) if name[0] != "_"} <= {*offered}
    for name in offered:
        assert hasattr(face, name), name
    assert {"StartMethod", "start_bare", "public"}.isdisjoint(offered)


# --- a program, and a type checker ----------------------------------------------------------------

PROGRAM = """
    import sys

    import torch
    import torch._dynamo  # as DDP does: here, it is once for all replicas
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import torch.multiprocessing as mp

    def train(rank, world_size, store, losses):
        dist.init_process_group("gloo", store, rank=rank, world_size=world_size)
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(10, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(rank + 1)
        for step in range(3):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(torch.randn(20, 10)), torch.randn(20, 10))
            loss.backward()
            optimizer.step()
            losses[rank, step] = loss.item()
        del model, loss, optimizer
        dist.destroy_process_group()

    if __name__ == "__main__":
        losses = torch.zeros(2, 3).share_memory_()
        print(mp.spawn(train, args=(2, sys.argv[1], losses), nprocs=2, join=True))
        print([[f"{loss:.5f}" for loss in row] for row in losses.tolist()])
"""
"""Data-parallel training as torch's notes on DDP show it (docs/source/notes/ddp.rst).

The model goes before its group. Otherwise the model's reducer frees the group, and with the
interpreter's lock held joins a thread of gloo's that may wait for that lock to free a Python object
(torch 2.13: ~Reducer, ProcessGroupGloo::runLoop): the process hangs, with torch's own spawn, too.
"""
TORCHS_OWN = """
        import torch.multiprocessing

        losses.zero_()
        arguments = (2, sys.argv[2], losses)
        torch.multiprocessing.start_processes(train, arguments, 2, start_method="fork")
        print([[f"{loss:.5f}" for loss in row] for row in losses.tolist()])
"""
"""The same by torch, in processes that need not import it again."""


@pytest.mark.slow
def test_a_documented_program_after_the_change_of_its_import(stage: Stage, tmp_path: Path) -> None:
    changed = PROGRAM.replace("import torch.multiprocessing as", "import xmp.compat.torch_mp as")
    stores = ((tmp_path / f"store{number}").as_uri() for number in itertools.count())
    done = without_abort(
        lambda: stage.run(changed + TORCHS_OWN, next(stores), next(stores), timeout=150, ok=False)
    )
    assert done.code == 0, f"{done.out}\n{done.err}"
    said, ours, theirs = done.out.splitlines()
    assert (said, ours) == ("None", theirs)
    assert theirs.startswith("[['")


# --- tensors on a GPU -----------------------------------------------------------------------------


ON_A_GPU = """
    import sys, torch, torch.multiprocessing as mp, xmp

    def adds(index, tensor):
        assert tensor.is_cuda
        tensor[index] += index + 1  # a place of its own: replicas share the memory
        torch.cuda.synchronize()

    if __name__ == "__main__":
        tensor = torch.zeros(2, device="cuda")
        for start in (xmp.start_processes, mp.start_processes):
            start(adds, (tensor,), nprocs=2, start_method=sys.argv[1])
        print(tensor.tolist())
"""


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_tensors_on_a_gpu_travel_as_arguments(stage: Stage, method: str) -> None:
    """By CUDA's own handles, so that both sides see one memory; "fork" cannot use CUDA at all."""
    outcome = stage.run(ON_A_GPU, method, timeout=120)
    assert "[2.0, 4.0]" in outcome.out
