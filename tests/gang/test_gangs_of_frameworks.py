"""Gangs of torch and JAX: groups, models and compiled programs stay; what cannot, is said."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import xmp

pytestmark = pytest.mark.framework


# --- torch ---------------------------------------------------------------------------------------


def makes_a_model(rank: int) -> None:
    xmp.init_process_group()
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    xmp.state().model = model
    xmp.state().optimizer = torch.optim.SGD(model.parameters(), 0.1)


def trains(rank: int, step: int) -> float:
    state = xmp.state()
    state.optimizer.zero_grad()
    loss = state.model(torch.full((2, 4), rank + step + 1.0)).square().mean()
    loss.backward()
    state.optimizer.step()
    return float(sum(each.sum() for each in state.model.parameters()))


def misspells(rank: int) -> None:
    undefined_name  # type: ignore[name-defined]  # noqa: B018, F821


@pytest.mark.failing
def test_a_ddp_model_lives_through_the_same_error_on_all_ranks() -> None:
    with xmp.gang(2, runtime="cpu", setup=makes_a_model) as gang:
        seen = [gang.run(trains, (step,)) for step in range(2)]
        with pytest.raises(xmp.ReplicaRaised, match="NameError"):
            gang.run(misspells)
        seen += [gang.run(trains, (step,)) for step in range(2, 4)]
        assert gang.generation == 1
    assert all(first == second for first, second in seen)
    assert len({first for first, _ in seen}) == 4


def dies_in_an_all_reduce(rank: int) -> None:
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    xmp.all_reduce(torch.ones(4))


def reduces(rank: int) -> float:
    return float(xmp.all_reduce(torch.tensor(float(rank))))


@pytest.mark.failing
def test_after_a_death_in_an_all_reduce_the_next_call_works() -> None:
    with xmp.gang(3, runtime="cpu", backend="gloo") as gang:
        assert gang.run(reduces) == [3.0] * 3
        with pytest.raises(xmp.ReplicaDied) as caught:
            gang.run(dies_in_an_all_reduce)
        assert caught.value.rank == 2
        assert gang.run(reduces) == [3.0] * 3
        assert gang.generation == 2


def is_stuck_in_native_code(rank: int) -> None:
    if rank == 1:
        raise ValueError("no")
    xmp.barrier()


@pytest.mark.failing
def test_a_rank_that_native_code_blocks_is_ended_long_before_the_grace_is_over() -> None:
    with xmp.gang(2, runtime="cpu", backend="gloo", grace=60) as gang:
        with pytest.raises(xmp.ReplicaRaised, match="no") as caught:
            gang.run(is_stuck_in_native_code, timeout=50)
        assert "The gang has lost its replicas" in str(caught.value)
        assert gang.run(reduces) == [1.0] * 2


# --- JAX: a launcher that has imported it would choose it for the tests of others, too -----------


def compiles(rank: int) -> None:
    import jax

    state = xmp.state()
    state.traced = 0

    def step(x: Any) -> Any:
        state.traced += 1
        return (x * 2).sum()

    state.step = jax.jit(step)


def steps(rank: int) -> tuple[float, int]:
    import jax

    return float(xmp.state().step(jax.numpy.arange(4.0))), xmp.state().traced


def broadcasts(rank: int, value: str, alone: bool = False) -> Any:
    return xmp.broadcast(value) if rank == 0 or not alone else None


def reduces_numpy(rank: int) -> float:
    xmp.barrier()
    return float(xmp.all_reduce(numpy.float32(rank)))


@pytest.mark.failing
def test_compiled_programs_and_the_mesh_of_jax_stay() -> None:
    with xmp.gang(2, runtime="jax", setup=compiles) as gang:
        assert [gang.run(steps) for _ in range(3)] == [[(12.0, 1)] * 2] * 3
        assert gang.run(reduces_numpy) == [1.0] * 2
        gang.run(broadcasts, ("old",), kwargs={"alone": True})
        assert gang.run(broadcasts, ("new",)) == ["new"] * 2
        with pytest.raises(xmp.ReplicaRaised, match="NameError"):
            gang.run(misspells)
        assert gang.run(reduces_numpy) == [1.0] * 2
        assert gang.run(steps) == [(12.0, 1)] * 2
        assert gang.generation == 1
