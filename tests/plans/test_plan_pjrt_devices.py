"""What PJRT_DEVICE and XLA_USE_SPMD say is meant: no plug-in becomes the CPU, no host one chip."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.tpu_hosts import FRAMEWORKS, host, plan, variables
from xmp._plan import planner
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, JobPlan, Request

SPMD = {"XLA_USE_SPMD": "1"}
SLICE = {
    "TPU_SKIP_MDS_QUERY": "true",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_WORKER_HOSTNAMES": "a,b,c,d",
    "TPU_WORKER_ID": "1",
}


def chosen(device: str, **request: Any) -> JobPlan:
    facts = HostFacts(env={"PJRT_DEVICE": device}, frameworks=FRAMEWORKS, loaded=("torch",))
    return planner.plan(Request(**request), facts)


@pytest.mark.parametrize("device", ["XPU", "xpu", "MYCHIP", "GPU", "CUDA", "MY_CHIP"])
def test_a_plug_in_is_passed_through(device: str) -> None:
    made = chosen(device, nprocs=2)
    assert (made.runtime, made.why) == ("pjrt", f"PJRT_DEVICE={device}")
    assert variables(made, "PJRT_DEVICE") == [device] * 2
    assert variables(made, "PJRT_LOCAL_PROCESS_RANK") == ["0", "1"]
    assert variables(made, "PJRT_LOCAL_PROCESS_COUNT") == ["2", "2"]
    assert variables(made, "CPU_NUM_DEVICES") == [None] * 2
    assert [r.device for r in made.hosts[0].replicas][1].endswith(":1")
    assert {need.name: need.how for need in made.needs}["xla_coordinator"] == "hold"
    (port,) = {need.documented for need in made.needs if need.name == "xla_coordinator"}
    assert variables(made, "XLA_COORDINATOR_PORT") == [str(port)] * 2


@pytest.mark.parametrize("nprocs", [None, -1])
@pytest.mark.parametrize("runtime", [None, "pjrt"])
def test_the_devices_of_a_plug_in_are_not_counted(nprocs: int | None, runtime: str | None) -> None:
    with pytest.raises(PlanError, match=r"PJRT_DEVICE=XPU, a plug-in .*Pass nprocs="):
        chosen("XPU", nprocs=nprocs, runtime=runtime)


def test_the_positions_of_its_devices_are_not_known() -> None:
    with pytest.raises(PlanError, match=r"devices=\[1\] .*no devices to choose from"):
        chosen("XPU", devices=(1,))


@pytest.mark.parametrize(("device", "runtime"), [("NEURON", "neuron"), ("TPU", "pjrt")])
def test_known_devices_stay_what_they_are(device: str, runtime: str) -> None:
    facts = host(env={"PJRT_DEVICE": device}, frameworks=FRAMEWORKS, loaded=("torch",))
    assert planner.plan(Request(), facts).runtime == runtime


def test_neuron_has_a_runtime_of_its_own() -> None:
    with pytest.raises(PlanError, match=r'PJRT_DEVICE=NEURON .*runtime="neuron"'):
        chosen("NEURON", runtime="pjrt", nprocs=2)


def test_without_torch_xla_the_variable_means_nothing() -> None:
    facts = HostFacts(env={"PJRT_DEVICE": "XPU"}, frameworks={"torch": "2.13.0+cpu"})
    assert planner.plan(Request(), facts).runtime == "cpu"


@pytest.mark.parametrize("value", ["1", "true", "YES", "on", "y"])
@pytest.mark.parametrize("nprocs", [None, 1])
def test_under_spmd_one_process_has_all_chips(value: str, nprocs: int | None) -> None:
    made = plan(host(env={"XLA_USE_SPMD": value}), nprocs=nprocs)
    assert made.world_size == 1
    assert made.hosts[0].replicas[0].device == "tpu:all"
    assert variables(made, "TPU_VISIBLE_CHIPS") == [None]
    assert variables(made, "TPU_PROCESS_BOUNDS") == ["1,1,1"]
    assert variables(made, "TPU_CHIPS_PER_PROCESS_BOUNDS") == ["2,4,1"]
    assert variables(made, "PJRT_LOCAL_PROCESS_COUNT") == ["1"]


@pytest.mark.parametrize("value", ["", "0", "false"])
def test_without_it_each_chip_has_a_process(value: str) -> None:
    assert plan(host(env={"XLA_USE_SPMD": value})).world_size == 8


@pytest.mark.parametrize("generation", ["v5e", "v3", "7x"])
def test_more_processes_are_refused_under_spmd(generation: str) -> None:
    facts = host(generation, chips=4, env=SPMD, frameworks=FRAMEWORKS)
    with pytest.raises(PlanError, match=r"with XLA_USE_SPMD one process owns all .* Unset"):
        plan(facts, nprocs=4)
    assert plan(facts).world_size == 1


def test_a_mask_leaves_its_part_of_the_host() -> None:
    made = plan(host(env={**SPMD, "TPU_VISIBLE_CHIPS": "0,1,2,3"}))
    assert variables(made, "TPU_VISIBLE_CHIPS") == ["0,1,2,3"]
    assert variables(made, "TPU_CHIPS_PER_PROCESS_BOUNDS") == ["2,2,1"]
    one = plan(host(env=SPMD), devices=(3,))
    assert variables(one, "TPU_VISIBLE_CHIPS") == ["3"]


def test_chips_that_form_no_box_are_refused_under_spmd() -> None:
    with pytest.raises(PlanError, match=r"TPU_VISIBLE_CHIPS=0,1,2 .*3 chips"):
        plan(host(env={**SPMD, "TPU_VISIBLE_CHIPS": "0,1,2"}))


def test_spmd_on_several_hosts_is_a_process_each() -> None:
    made = plan(host(chips=4, env={**SLICE, **SPMD}))
    assert made.world_size == 4
    assert variables(made, "CLOUD_TPU_TASK_ID") == ["1"]
    assert variables(made, "TPU_PROCESS_BOUNDS") == ["2,2,1"]


def test_spmd_asked_for_by_the_call() -> None:
    made = plan(host(), env=((("XLA_USE_SPMD", "1"),),))
    assert made.world_size == 1


def test_spmd_on_the_cpu_keeps_the_devices() -> None:
    facts = HostFacts(env={**SPMD, "CPU_NUM_DEVICES": "4"}, frameworks=FRAMEWORKS)
    made = plan(facts)
    assert variables(made, "CPU_NUM_DEVICES") == ["4"]
    assert not any("CPU_NUM_DEVICES" in note for note in made.notes)
    with pytest.raises(PlanError, match="with XLA_USE_SPMD one process owns all CPU devices"):
        plan(facts, nprocs=2, backend="gloo")


@pytest.mark.parametrize("nprocs", [1, 2])
def test_spmd_on_neuron_is_not_one_core(nprocs: int) -> None:
    facts = HostFacts(env={**SPMD, "PJRT_DEVICE": "NEURON", "NEURON_RT_VISIBLE_CORES": "0-3"})
    with pytest.raises(PlanError, match="XLA_USE_SPMD=1: one process owns all Neuron cores"):
        plan(facts, "neuron", nprocs=nprocs)
