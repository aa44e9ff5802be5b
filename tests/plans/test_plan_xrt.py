"""Legacy XRT: a test for each defect of the original algorithm, which the original would fail.

The original is pytorch/xla's ``torch_xla/distributed/xla_multiprocessing.py`` at b6dc88078d.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.plans import given as variables
from xmp._plan import planner
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, JobPlan, Request

OLD = {"torch": "1.6.0", "torch_xla": "1.6"}
TPU = {"XRT_TPU_CONFIG": "tpu_worker;0;10.0.0.9:8470"}
GPU = {"GPU_NUM_DEVICES": "2"}
TWO = {
    "GPU_NUM_DEVICES": "2",
    "XRT_SHARD_WORLD_SIZE": "2",
    "XRT_LOCAL_WORKER": "w:1",
    "XRT_WORKERS": "w:0;grpc://gpu-host-0:4000|w:1;10.0.0.3:4000",
}


def plan(env: dict[str, str], gpus: int = 8, **request: Any) -> JobPlan:
    facts = HostFacts(env=env, frameworks=OLD, gpus={"vendor": "nvidia", "count": gpus})
    return planner.plan(Request(runtime="xrt", **request), facts)


def test_a_tpu_host() -> None:
    made = plan(TPU)
    first, last = variables(made, 0), variables(made, 7)
    for local in range(8):
        given = variables(made, local)
        assert given["XRT_SHARD_ORDINAL"] == given["XRT_SHARD_LOCAL_ORDINAL"] == str(local)
        assert given["XRT_MULTI_PROCESSING_DEVICE"] == f"TPU:{local}"
        assert given["XRT_SHARD_WORLD_SIZE"] == "8"
        assert given["XRT_LOCAL_WORKER"] == "tpu_worker:0"
    assert first["XRT_TPU_CONFIG"] == TPU["XRT_TPU_CONFIG"]
    assert "XRT_TPU_CONFIG" not in last
    assert "XRT_TPU_CONFIG" in made.hosts[0].replicas[7].unset


def test_the_number_of_devices_may_be_given_or_empty() -> None:
    assert plan({**TPU, "TPU_NUM_DEVICES": "4"}).world_size == 4
    assert plan({**TPU, "TPU_NUM_DEVICES": ""}).world_size == 8
    with pytest.raises(PlanError, match="TPU_NUM_DEVICES='x'"):
        plan({**TPU, "TPU_NUM_DEVICES": "x"})


@pytest.mark.parametrize("nprocs", [2, 7, 9])
def test_all_devices_or_one(nprocs: int) -> None:
    assert plan(TPU, nprocs=1).world_size == 1
    with pytest.raises(PlanError, match=f"nprocs={nprocs} does not fit.*1, 8"):
        plan(TPU, nprocs=nprocs)


def test_the_mesh_service_is_a_held_loopback_port() -> None:
    made = plan(TPU)
    need = made.needs[0]
    assert (need.name, need.how, need.address) == ("mesh", "hold", "127.0.0.1")
    again = planner.plan(
        Request(runtime="xrt"), HostFacts(env=TPU, frameworks=OLD), {"mesh": 40001}
    )
    assert variables(again)["XRT_MESH_SERVICE_ADDRESS"] == "127.0.0.1:40001"
    assert plan(TPU, nprocs=1).needs == ()


def test_tpu_num_devices_alone_is_enough() -> None:
    assert plan({"TPU_NUM_DEVICES": "8"}).world_size == 8


@pytest.mark.parametrize("runtime", ["xrt", None])
@pytest.mark.parametrize("name", ["XRT_LOCAL_WORKER", "XRT_WORKERS"])
def test_a_part_of_a_configuration_is_refused_with_what_is_missing(
    name: str, runtime: str | None
) -> None:
    """An old torch_xla that is named, or found, and would be left for the CPU in silence."""
    facts = HostFacts(env={name: "w:0"}, frameworks=OLD)
    with pytest.raises(PlanError, match=f"{name}=w:0 without .*: set XRT_TPU_CONFIG .*or GPU_NUM"):
        planner.plan(Request(runtime=runtime), facts)
    inside = HostFacts(env={name: "w:0", "XMP_DEVICE": "tpu:0"}, frameworks=OLD)
    assert planner.plan(Request(nprocs=2), inside).runtime == "cpu"


@pytest.mark.parametrize(
    "config",
    [
        "tpu-worker;0;tpu-host-0.c.internal:8470",
        "tpu_worker;0;[fd00::1]:8470",
        "a;0;h:1|b;1;h:2",
    ],
)
def test_hyphens_and_ipv6_in_hosts(config: str) -> None:
    assert variables(plan({"XRT_TPU_CONFIG": config}))["XRT_TPU_CONFIG"] == config


@pytest.mark.parametrize(
    "config", ["w;0;h:1trailing", "w;0;h:1|w;0;h:2", "w;0;h", "w;zero;h:1", "w;1;h:1"]
)
def test_trailing_text_and_repeated_entries_are_refused(config: str) -> None:
    with pytest.raises(PlanError, match="XRT_TPU_CONFIG"):
        plan({"XRT_TPU_CONFIG": config})


def test_an_outer_mask_is_respected() -> None:
    made = plan({**GPU, "CUDA_VISIBLE_DEVICES": "3,5"})
    assert [variables(made, i)["CUDA_VISIBLE_DEVICES"] for i in (0, 1)] == ["3", "5"]
    with pytest.raises(PlanError, match="leaves 1"):
        plan({**GPU, "CUDA_VISIBLE_DEVICES": "3"})


def test_gpus_of_one_host() -> None:
    made = plan(GPU)
    given = variables(made, 1)
    assert given["XRT_LOCAL_WORKER"] == "localservice:1"
    assert given["XRT_MULTI_PROCESSING_DEVICE"] == "GPU:1"
    workers = given["XRT_WORKERS"].split("|")
    assert workers == [
        "localservice:0;grpc://127.0.0.1:4000",
        "localservice:1;grpc://127.0.0.1:4001",
    ]
    task = "/job:localservice/replica:0/task:{0}/device:XLA_GPU:0"
    assert given["XRT_DEVICE_MAP"] == f"GPU:0;{task.format(0)}|GPU:1;{task.format(1)}"
    assert "GPU_NUM_DEVICES" in made.hosts[0].replicas[1].unset
    assert len({need.name for need in made.needs}) == 3


def test_gpus_of_two_hosts_by_worker_table() -> None:
    made = plan(TWO)
    given = variables(made, 1)
    assert made.world_size == 4
    assert given["XRT_SHARD_ORDINAL"] == "3"
    assert given["XRT_SHARD_WORLD_SIZE"] == "4"
    ports = [entry.rpartition(";")[2] for entry in given["XRT_WORKERS"].split("|")]
    assert ports == [
        "grpc://gpu-host-0:4000",
        "grpc://gpu-host-0:4001",
        "grpc://10.0.0.3:4000",
        "grpc://10.0.0.3:4001",
    ]
    jobs = {entry.partition(":")[0] for entry in given["XRT_WORKERS"].split("|")}
    assert jobs == {"localservice"}  # the same job name as in the device map
    assert given["XRT_MESH_SERVICE_ADDRESS"] == "gpu-host-0:8477"
    assert [need.port for need in made.needs] == [4000, 4001]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"XRT_WORKERS": ""}, "need XRT_WORKERS"),
        ({"XRT_SHARD_WORLD_SIZE": "3"}, "names 2 hosts, but XRT_SHARD_WORLD_SIZE=3"),
        ({"XRT_LOCAL_WORKER": "w:2"}, "says host 2"),
        ({"XRT_WORKERS": "w:0;grpc://grpc://h:1|w:1;h:1"}, "malformed"),
    ],
)
def test_worker_tables_that_cannot_be(change: dict[str, str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan({**TWO, **change})


def test_tpu_hosts_need_the_service_address_of_the_first() -> None:
    env = {"TPU_NUM_DEVICES": "8", "XRT_LOCAL_WORKER": "w:1", "XRT_SHARD_WORLD_SIZE": "2"}
    with pytest.raises(PlanError, match="meet at XRT_MESH_SERVICE_ADDRESS, which is not set"):
        plan(env)
    made = plan({**env, "XRT_MESH_SERVICE_ADDRESS": "first:8477"})
    assert variables(made)["XRT_SHARD_ORDINAL"] == "8"
    assert made.needs == ()


def test_planning_twice_gives_the_same_and_changes_nothing() -> None:
    env = dict(GPU)
    assert plan(env) == plan(env)
    assert env == GPU


@pytest.mark.parametrize("local", [0, 1])
def test_replicas_are_not_taken_for_hosts(local: int) -> None:
    """The variable that counted hosts counts replicas in a replica: it would be multiplied."""
    inside = {**TPU, **variables(plan(TPU), local)}
    del inside["XMP_DEVICE"]  # a replica of another launcher does not have it
    with pytest.raises(PlanError, match=f"DEVICE=TPU:{local} says that .* a replica already"):
        plan(inside)
    alone = {**TPU, **variables(plan(TPU, nprocs=1))}
    del alone["XMP_DEVICE"]
    assert plan(alone).world_size == 8


def test_only_an_old_torch_xla_is_configured_by_it() -> None:
    new = HostFacts(env=TPU, frameworks={"torch": "2.9.1+cpu", "torch_xla": "2.9.0"})
    made = planner.plan(Request(), new)
    assert made.runtime != "xrt"
    assert any("XRT_TPU_CONFIG" in note for note in made.notes)
    old = HostFacts(env=TPU, frameworks=OLD)
    assert planner.plan(Request(), old).runtime == "xrt"


def test_by_name_it_is_refused_where_torch_xla_has_none() -> None:
    new = HostFacts(env=TPU, frameworks={"torch": "2.9.1+cpu", "torch_xla": "2.9.0"})
    with pytest.raises(PlanError, match=r'torch_xla up to 2\.0; 2\.9\.0 .*runtime="pjrt"'):
        planner.plan(Request(runtime="xrt"), new)
