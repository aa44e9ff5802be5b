"""GPUs of three makers, Neuron cores and Paddle: masks are respected, ranks count in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.plans import given as variables
from xmp._plan import planner
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, JobPlan, Request


def plan(
    runtime: str, env: dict[str, str] | None = None, vendor: str = "nvidia", **request: Any
) -> JobPlan:
    facts = HostFacts(env=env or {}, gpus={"vendor": vendor, "count": 8}, cpus=(0, 1, 2, 3))
    return planner.plan(Request(runtime=runtime, **request), facts)


@pytest.mark.parametrize(
    ("mask", "visible"),
    [
        (None, "0,1,2,3,4,5,6,7"),
        ("3,5,7", "3,5,7"),
        (" 3, 5 ", "3,5"),
        ("0,-1,2", "0"),
        ("2,9,3", "2"),
        ("GPU-11,GPU-22", "GPU-11,GPU-22"),
    ],
)
def test_every_replica_sees_the_same_devices(mask: str | None, visible: str) -> None:
    made = plan("cuda", {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask})
    count = len(visible.split(","))
    assert made.world_size == count
    assert {variables(made, i)["CUDA_VISIBLE_DEVICES"] for i in range(count)} == {visible}
    assert [r.device for r in made.hosts[0].replicas] == [f"cuda:{i}" for i in range(count)]


@pytest.mark.parametrize("slices", [("MIG-GPU-1/2/3", "MIG-GPU-1/4/5"), ("MIG-3eb8", "MIG-9d2a")])
def test_a_replica_sees_its_own_mig_slice_alone(slices: tuple[str, str]) -> None:
    """CUDA shows a process one of them, whatever its mask lists."""
    made = plan("cuda", {"CUDA_VISIBLE_DEVICES": ",".join(slices)})
    replicas = made.hosts[0].replicas
    assert [variables(made, i)["CUDA_VISIBLE_DEVICES"] for i in range(2)] == [*slices]
    assert [(r.device, dict(r.settings)["device_index"]) for r in replicas] == [("cuda:0", "0")] * 2
    turned = plan("cuda", {"CUDA_VISIBLE_DEVICES": ",".join(slices)}, devices=(1,))
    assert variables(turned)["CUDA_VISIBLE_DEVICES"] == slices[1]


def test_devices_are_positions_in_the_mask_in_the_order_of_ranks() -> None:
    made = plan("cuda", {"CUDA_VISIBLE_DEVICES": "3,5,7"}, devices=(2, 0))
    assert variables(made)["CUDA_VISIBLE_DEVICES"] == "7,3"
    assert variables(plan("cuda", nprocs=2))["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.parametrize("mask", ["", "-1"])
def test_a_mask_that_hides_everything_is_named(mask: str) -> None:
    with pytest.raises(PlanError, match=rf"'cuda' may use \(CUDA_VISIBLE_DEVICES='{mask}'"):
        plan("cuda", {"CUDA_VISIBLE_DEVICES": mask})


def test_a_repeated_device_is_named() -> None:
    with pytest.raises(PlanError, match="repeats 3, which hides every GPU"):
        plan("cuda", {"CUDA_VISIBLE_DEVICES": "3,3"})


def test_a_broken_mask_does_not_stop_another_runtime() -> None:
    facts = HostFacts(
        env={"CUDA_VISIBLE_DEVICES": "3,3"},
        gpus={"vendor": "nvidia", "count": 8},
        frameworks={"torch": "2.13.0+cu13.0"},
        loaded=("torch",),
    )
    made = planner.plan(Request(runtime="cpu", nprocs=2), facts)
    assert made.others == ()
    with pytest.raises(PlanError, match="repeats 3"):
        planner.plan(Request(), facts)


def test_jax_on_gpus_sees_all_and_uses_one() -> None:
    facts = HostFacts(
        gpus={"vendor": "nvidia", "count": 4},
        frameworks={"jax": "0.10.2", "jax_cuda_plugin": "0.10.2"},
    )
    made = planner.plan(Request(runtime="jax"), facts)
    assert [dict(r.settings)["local_device_ids"] for r in made.hosts[0].replicas] == list("0123")
    assert variables(made, 3)["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert variables(made, 3)["JAX_PLATFORMS"] == "cuda"
    slices = replace(facts, env={"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"})
    made = planner.plan(Request(runtime="jax"), slices)
    assert [dict(r.settings)["local_device_ids"] for r in made.hosts[0].replicas] == ["0", "0"]
    assert variables(made, 1)["CUDA_VISIBLE_DEVICES"] == "MIG-b"
    masked = replace(facts, env={"CUDA_VISIBLE_DEVICES": "3,1"})
    made = planner.plan(Request(runtime="jax"), masked)
    # The ids are those that JAX gives to what the mask leaves; it reads no variable for them.
    assert [dict(r.settings)["local_device_ids"] for r in made.hosts[0].replicas] == ["0", "1"]
    assert [variables(made, i)["CUDA_VISIBLE_DEVICES"] for i in (0, 1)] == ["3,1"] * 2
    assert not any("JAX_CUDA" in name or "DEVICE_IDS" in name for name in variables(made))


@pytest.mark.parametrize(
    ("env", "mask"),
    [
        ({}, "0,1,2,3,4,5,6,7"),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6"}, "0,1,2"),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6", "HIP_VISIBLE_DEVICES": "2,0"}, "2,0"),
        ({"CUDA_VISIBLE_DEVICES": "1,3"}, "1,3"),
        ({"HIP_VISIBLE_DEVICES": "6", "CUDA_VISIBLE_DEVICES": "1,3"}, "6"),
    ],
)
def test_amds_two_masks(env: dict[str, str], mask: str) -> None:
    made = plan("rocm", env, "amd")
    assert variables(made)["HIP_VISIBLE_DEVICES"] == mask
    assert "ROCR_VISIBLE_DEVICES" not in variables(made)
    assert ("CUDA_VISIBLE_DEVICES" in made.hosts[0].replicas[0].unset) == (
        "CUDA_VISIBLE_DEVICES" in env
    )


def test_intels_mask_and_its_tiles() -> None:
    made = plan("xpu", {"ZE_AFFINITY_MASK": "1,3"}, "intel")
    assert variables(made)["ZE_AFFINITY_MASK"] == "1,3"
    assert [r.device for r in made.hosts[0].replicas] == ["xpu:0", "xpu:1"]
    with pytest.raises(PlanError, match="names tiles"):
        plan("xpu", {"ZE_AFFINITY_MASK": "0.1"}, "intel")


@pytest.mark.parametrize(
    ("env", "cores"),
    [
        ({"NEURON_RT_VISIBLE_CORES": "4-6"}, ["4", "5", "6"]),
        ({"NEURON_RT_VISIBLE_CORES": "0-1,8"}, ["0", "1", "8"]),
        ({"NEURONCORE_NUM_DEVICES": "2"}, ["0", "1"]),
        ({}, ["0"]),
    ],
)
def test_neuron_cores(env: dict[str, str], cores: list[str]) -> None:
    made = plan("neuron", env)
    assert [variables(made, i)["NEURON_RT_VISIBLE_CORES"] for i in range(made.world_size)] == cores
    last = variables(made, len(cores) - 1)
    assert last["NEURON_PJRT_PROCESSES_NUM_DEVICES"] == ",".join("1" for _ in cores)
    assert last["NEURON_PJRT_PROCESS_INDEX"] == str(len(cores) - 1)
    assert last["NEURON_RT_ROOT_COMM_ID"] == "127.0.0.1:62182"


@pytest.mark.parametrize("text", ["1,1", "0-2,2", "a", "1-"])
def test_neuron_cores_that_cannot_be(text: str) -> None:
    with pytest.raises(PlanError, match="NEURON_RT_VISIBLE_CORES"):
        plan("neuron", {"NEURON_RT_VISIBLE_CORES": text})


def test_paddle_trainers_know_each_other() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "2,6", "http_proxy": "p", "no_proxy": "x"}
    made = plan("paddle", env)
    given = variables(made, 1)
    assert given["PADDLE_TRAINER_ENDPOINTS"] == "127.0.0.1:6070,127.0.0.1:6071"
    assert given["PADDLE_CURRENT_ENDPOINT"] == "127.0.0.1:6071"
    assert (given["PADDLE_TRAINER_ID"], given["PADDLE_TRAINERS_NUM"]) == ("1", "2")
    assert (given["CUDA_VISIBLE_DEVICES"], given["FLAGS_selected_gpus"]) == ("2,6", "1")
    assert "http_proxy" in made.hosts[0].replicas[0].unset
    cores = planner.plan(Request(runtime="paddle", nprocs=2), HostFacts())
    assert variables(cores)["PADDLE_DISTRI_BACKEND"] == "gloo"
