"""Process groups: of a world of one, of some replicas, of a host; which backend they have."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import xmp
from tests.support.frameworks import replicas as any_replicas
from tests.support.frameworks import together
from tests.support.fresh import in_fresh_interpreter
from tests.support.stage import Stage

replicas = partial(any_replicas, runtime="cpu")


# --- the default group ---------------------------------------------------------------------------


def forms_its_group(rank: int) -> Any:
    import torch.distributed as dist

    xmp.init_process_group("gloo", timeout=timedelta(seconds=77))
    group = dist.group.WORLD
    xmp.init_process_group("GLOO")
    xmp.init_process_group("auto", timeout=3)
    xmp.init_process_group()
    with pytest.raises(ValueError, match="there already, with backend 'gloo'") as caught:
        xmp.init_process_group("fake")
    assert "destroy_process_group() before" in str(caught.value)
    limits = group._get_backend(xmp.device()).options._timeout
    return dist.group.WORLD is group, dist.get_backend(), limits.total_seconds()


IN_THIS_PROCESS = """
import torch.distributed as dist, xmp

def functions():
    return dist.destroy_process_group, dist.distributed_c10d.destroy_process_group

def forms_and_destroys(rank):
    xmp.init_process_group()
    assert functions() != before
    dist.destroy_process_group()

if __name__ == "__main__":
    before = functions()
    xmp.spawn(forms_and_destroys, nprocs=1, runtime="cpu")
    assert functions() == before
"""


def test_torchs_own_function_is_back_after_a_launch_in_this_process() -> None:
    in_fresh_interpreter(IN_THIS_PROCESS)


@pytest.fixture(scope="module")
def found() -> dict[str, list[Any]]:
    """What each function returns in two replicas; one launch, the first forms no group."""
    return together(
        replicas, has_no_such_backend, forms_its_group, misuses_groups, samples, its_host, nprocs=2
    )


def test_torchs_habits_are_taken_and_another_backend_is_an_error(
    found: dict[str, list[Any]],
) -> None:
    assert found["forms_its_group"] == [(True, "gloo", 77.0)] * 2


def has_no_such_backend(rank: int) -> str:
    import torch.distributed as dist

    with pytest.raises(ValueError, match="which this torch does not have") as caught:
        xmp.init_process_group("glou")
    assert not dist.is_initialized()
    return str(caught.value)


def test_a_backend_that_torch_does_not_have_is_refused_with_those_it_has(
    found: dict[str, list[Any]],
) -> None:
    (text,) = set(found["has_no_such_backend"])
    assert text.startswith("backend is 'glou'")
    assert "'gloo'" in text


def no_torch_group(rank: int) -> str:
    xmp.init_process_group()
    xmp.init_process_group("auto", timeout=30)
    with pytest.raises(ValueError) as caught:
        xmp.init_process_group("gloo")
    return str(caught.value)


def test_jax_forms_no_group_of_torchs() -> None:
    for text in any_replicas(no_torch_group, runtime="jax", nprocs=2):
        assert "runtime 'jax' connects the replicas itself" in text


ALONE = """
import os, traceback
os.environ.pop("GLOO_SOCKET_IFNAME", None)
import in_script, psutil, torch, xmp

dist, interfaces = torch.distributed, []
own = dist.init_process_group

def spy(*args, **kwargs):
    interfaces.append(os.environ.get("GLOO_SOCKET_IFNAME"))
    own(*args, **kwargs)

def forms_a_group(backend):
    interfaces.clear()
    xmp.init_process_group(backend)
    assert dist.get_world_size() == 1 and dist.get_rank() == 0
    group = xmp.local_group()
    assert group is dist.group.WORLD
    assert (xmp.rank(group), xmp.world_size(group)) == (0, 1)
    x = torch.tensor([3.0])
    dist.all_reduce(x)
    assert x.item() == 3 and xmp.all_reduce(3, group=group) == 3
    assert xmp.all_gather("x", group) == ["x"] and xmp.broadcast("x", 0, group) == "x"
    xmp.barrier(group)
    assert "gloo" in dist.get_backend_config()
    # The host's name may be loopback here: what gloo is told counts as well.
    assert interfaces == ["lo"], interfaces
    sockets = psutil.Process().net_connections("inet")
    listening = {each.laddr.ip for each in sockets if each.status == "LISTEN"}
    assert listening == {"127.0.0.1"}, listening
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    dist.destroy_process_group()
    xmp.init_process_group()
    dist.destroy_process_group()

dist.init_process_group = spy
for backend in (None, "gloo"):
    for variables in ({}, {"MASTER_ADDR": "0.0.0.0", "MASTER_PORT": "29617"}):
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)
        os.environ.update(variables)
        said = ""
        try:
            forms_a_group(backend)
        except Exception:
            said = traceback.format_exc()
            if dist.is_initialized():
                dist.destroy_process_group()
        in_script.say(**{f"{backend} {len(variables)}": said})
"""


@pytest.fixture(scope="module")
def alone(shared_stage: Stage) -> dict[str, str]:
    """What went wrong in each case; one interpreter forms all groups, one after the other."""
    done = shared_stage.python(str(shared_stage.write(ALONE)), timeout=60)
    assert done.code == 0, done.err
    return done.said


@pytest.mark.parametrize("variables", [0, 2], ids=["no address", "MASTER_ADDR"])
@pytest.mark.parametrize("backend", [None, "gloo"])
def test_a_world_of_one_forms_a_group_of_one_on_loopback(
    variables: int, backend: str | None, alone: dict[str, str]
) -> None:
    assert alone[f"{backend} {variables}"] == ""


# --- groups of some replicas ---------------------------------------------------------------------


def in_groups(rank: int) -> Any:
    import torch
    import torch.distributed as dist

    xmp.init_process_group()
    odd, even = dist.new_group([1, 3]), dist.new_group([0, 2])
    mine, other = (odd, even) if rank % 2 else (even, odd)
    value = {"t": torch.tensor([rank]), "n": rank, "word": "w"}
    tensor = value["t"]
    summed = xmp.all_reduce(value, group=mine)
    assert tensor.item() == rank, "changed in place"
    xmp.barrier(mine)
    return {
        "place": (xmp.rank(mine), xmp.world_size(mine), xmp.rank(other), xmp.world_size(other)),
        "world": (xmp.rank(dist.group.WORLD), xmp.world_size(dist.group.WORLD)),
        "sum": (summed["t"].item(), summed["n"], summed["word"]),
        "mean": xmp.all_reduce(float(rank), "mean", mine),
        "small": xmp.all_reduce(torch.tensor([rank], dtype=torch.int16), "max", group=mine).item(),
        "all": xmp.all_gather(torch.full((rank,), rank), mine)[1].tolist(),
        "sent": xmp.broadcast({"from": rank, "t": torch.arange(9000)}, rank % 2 + 2, mine)["from"],
    }


def test_collectives_of_a_group_are_those_of_its_ranks() -> None:
    seen = replicas(in_groups, nprocs=4)
    assert [each["place"] for each in seen] == [(0, 2, -1, -1)] * 2 + [(1, 2, -1, -1)] * 2
    assert [each["world"] for each in seen] == [(rank, 4) for rank in range(4)]
    assert [each["sum"] for each in seen] == [(2, 2, "w"), (4, 4, "w")] * 2
    assert [each["mean"] for each in seen] == [1.0, 2.0] * 2
    assert [each["small"] for each in seen] == [2, 3] * 2
    assert [each["all"] for each in seen] == [[2, 2], [3, 3, 3]] * 2
    assert [each["sent"] for each in seen] == [2, 3] * 2


def misuses_groups(rank: int) -> list[str]:
    import torch.distributed as dist

    xmp.init_process_group()
    first, gone = dist.new_group([0]), dist.new_group([0, 1])
    dist.destroy_process_group(gone)
    calls: list[Any] = [
        lambda: xmp.broadcast(1, 1, first if rank == 0 else None),
        lambda: xmp.all_reduce(1, group="world"),
        lambda: xmp.rank([0, 1]),
        lambda: xmp.rank(gone),
    ]
    if rank == 1:
        calls[0] = lambda: xmp.all_reduce(1, group=first)
    texts = []
    for call in calls:
        with pytest.raises((ValueError, TypeError)) as caught:
            call()
        texts.append(f"{type(caught.value).__name__}: {caught.value}")
    return texts


def test_a_misused_group_is_an_error_that_says_how(found: dict[str, list[Any]]) -> None:
    member, outsider = found["misuses_groups"]
    assert member[0] == "ValueError: src is 1; the group has the (global) ranks 0"
    assert "rank 1 is not in the group" in outsider[0]
    for texts in (member, outsider):
        assert texts[1].startswith("TypeError: group must be a torch.distributed.ProcessGroup")
        assert "not list: [0, 1]" in texts[2]
        assert "or no longer" in texts[3]


def its_host(rank: int) -> Any:
    import torch.distributed as dist

    group = xmp.local_group()
    again = xmp.local_group() is group
    ranks = xmp.all_gather(rank, group)
    total = xmp.all_reduce(1, group=group)
    dist.destroy_process_group()
    after = xmp.world_size(xmp.local_group())
    return again, ranks, total, xmp.rank(xmp.local_group()), after, xmp.all_gather(rank)


def test_on_one_host_the_local_group_is_the_world(found: dict[str, list[Any]]) -> None:
    assert found["its_host"] == [(True, [0, 1], 2, rank, 2, [0, 1]) for rank in range(2)]


# --- what replica() says -------------------------------------------------------------------------


def samples(rank: int) -> Any:
    from torch.utils.data import DistributedSampler

    replica = xmp.replica()
    sampler = DistributedSampler(range(6), shuffle=False, **replica.sampler_kwargs)
    place = (replica.device_type, replica.device_id, replica.device_ordinal)
    return list(sampler), place, replica.endpoint, replica.endpoints


def test_a_sampler_gets_its_part_of_the_data(found: dict[str, list[Any]]) -> None:
    assert found["samples"] == [
        ([0, 2, 4], ("cpu", 0, 0), "", ()),
        ([1, 3, 5], ("cpu", 0, 1), "", ()),
    ]
    assert xmp.replica().sampler_kwargs == {"num_replicas": 1, "rank": 0}
