"""What holds for every plan that libtpu reads, on any host and with any inherited variables."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tests.support.tpu_hosts import ALL, FRAMEWORKS, host, plan, variables
from xmp._os import ports
from xmp._plan import planner
from xmp._plan.runtimes import _tpu
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, JobPlan, ReplicaPlan, Request

SLICES = json.loads((Path(__file__).parent / "slices.json").read_text())
DERIVED = ("TORCH_TPU_SLICEBUILDER_ADDRESSES", "TORCH_TPU_TOPOLOGY")


def seen(replica: ReplicaPlan, env: dict[str, str]) -> dict[str, str]:
    """The environment of a replica: what it inherits, less what is taken away, and what is set."""
    kept = {name: value for name, value in env.items() if name not in replica.unset}
    return {**kept, **dict(replica.set)}


def environments(made: JobPlan, facts: HostFacts) -> list[dict[str, str]]:
    """One environment for each process of the (one) host."""
    processes = {r.process: seen(r, facts.env) for r in made.hosts[0].replicas}
    return list(processes.values())


def product(bounds: str) -> int:
    return prod(int(number) for number in bounds.split(","))


def check_libtpu(own: dict[str, str]) -> None:
    """One process: its place is described in full, and in one way."""
    addresses = own["TPU_PROCESS_ADDRESSES"].split(",")
    task = int(own["CLOUD_TPU_TASK_ID"])
    assert product(own["TPU_PROCESS_BOUNDS"]) == len(addresses) == len(set(addresses))
    assert addresses[task].rpartition(":")[2] == own["TPU_PROCESS_PORT"]
    assert own["TPU_WORKER_ID"] == str(task)  # JAX's name for it
    chips = own.get("TPU_VISIBLE_CHIPS")
    if chips is not None:
        assert product(own["TPU_CHIPS_PER_PROCESS_BOUNDS"]) == len(chips.split(","))
    # What libtpu or JAX would take instead of the above, or at another port.
    left = {"TPU_HOST_BOUNDS", "HOST_BOUNDS", "TPU_VISIBLE_DEVICES"}
    assert not left & {*own}
    # torch_xla reads the hosts from it; libtpu and JAX prefer the addresses, which say the same.
    hosts = list(dict.fromkeys(entry.rpartition(":")[0] for entry in addresses))
    kept = "PJRT_DEVICE" in own and len(hosts) > 1
    assert own.get("TPU_WORKER_HOSTNAMES") == (",".join(hosts) if kept else None)


def check_torch_tpu(own: dict[str, str]) -> None:
    """One process: the few that the library derives the others from, and none of the others."""
    addresses = own["TORCH_TPU_SLICEBUILDER_ADDRESSES"].split(",")
    assert product(own["TORCH_TPU_TOPOLOGY"]) == len(addresses) == int(own["WORLD_SIZE"])
    assert own["TPU_VISIBLE_DEVICES"].isdigit()
    assert {*_tpu.OWNED} & {*own} == {"TPU_VISIBLE_DEVICES"}


def worker_of(row: dict[str, Any], worker: int) -> HostFacts:
    """A host of a slice on GKE, with all that its device plugin says."""
    names = ",".join(f"10.0.{i}.2" for i in range(row["hosts"]))
    env = {
        "TPU_ACCELERATOR_TYPE": row["type"],
        "TPU_TOPOLOGY": row["topology"],
        "TPU_SKIP_MDS_QUERY": "true",
        "TPU_WORKER_HOSTNAMES": names,
        "TPU_WORKER_ID": str(worker),
        "TPU_HOST_BOUNDS": row["host_bounds"],
        "HOST_BOUNDS": row["host_bounds"],
        "TPU_CHIPS_PER_HOST_BOUNDS": row["chip_bounds"],
        "CHIPS_PER_HOST_BOUNDS": row["chip_bounds"],
        "TPU_VISIBLE_CHIPS": ",".join(str(i) for i in range(row["chips_per_host"])),
    }
    if row["generation"] == "7x":  # its mask counts cores
        del env["TPU_VISIBLE_CHIPS"]
    return host(row["generation"], row["chips_per_host"], address=f"10.0.{worker}.2", env=env)


@pytest.mark.parametrize("runtime", ["pjrt", "jax", "torch_tpu"])
@pytest.mark.parametrize("row", SLICES, ids=lambda row: f"{row['type']}-{row['hosts']}")
def test_every_process_of_a_slice_is_described_in_one_way(
    row: dict[str, Any], runtime: str
) -> None:
    if runtime == "torch_tpu" and row["generation"] in ("v2", "v3"):
        with pytest.raises(PlanError, match="torch_tpu does not know"):
            plan(worker_of(row, 0), runtime)
        return
    tasks: list[str] = []
    for worker in sorted({0, row["hosts"] - 1}):
        facts = worker_of(row, worker)
        made = plan(facts, runtime)
        found = environments(made, facts)
        mask = "TPU_VISIBLE_DEVICES" if runtime == "torch_tpu" else "TPU_VISIBLE_CHIPS"
        assert len({own.get(mask) for own in found}) == len(found)  # each its own chip
        for own in found:
            (check_torch_tpu if runtime == "torch_tpu" else check_libtpu)(own)
        tasks += [own.get("CLOUD_TPU_TASK_ID", own.get("RANK", "")) for own in found]
    assert len(set(tasks)) == len(tasks)


@pytest.mark.parametrize("runtime", ["pjrt", "jax", "torch_tpu"])
@pytest.mark.parametrize(("generation", "chips"), [("v5e", 8), ("v4", 4), ("7x", 4), ("v6e", 1)])
def test_parts_of_a_host_are_described_in_one_way(
    runtime: str, generation: str, chips: int
) -> None:
    facts = host(generation, chips)
    for nprocs in (1, 2, 4, 8):
        try:
            made = plan(facts, runtime, nprocs=nprocs)
        except PlanError:
            continue
        for own in environments(made, facts):
            (check_torch_tpu if runtime == "torch_tpu" else check_libtpu)(own)


# --- inherited variables -------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["pjrt", "jax", "torch_tpu"])
@pytest.mark.parametrize(("generation", "chips"), [("v5e", 8), ("7x", 4)])
def test_a_launcher_with_a_replicas_variables_plans_as_one_without(
    runtime: str, generation: str, chips: int
) -> None:
    """As another launcher's process has, or what a runtime in this one has written."""
    facts = host(generation, chips)
    first = environments(plan(facts, runtime), facts)
    # The mask is a mask, and the device is what makes it a replica of ours.
    gone = {"TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "XMP_DEVICE"}
    sibling = {name: value for name, value in first[1].items() if name not in gone}
    again = host(generation, chips, env=sibling)
    assert environments(plan(again, runtime), again) == first


@pytest.mark.parametrize("runtime", ["pjrt", "jax", "torch_tpu"])
def test_empty_variables_are_none(runtime: str) -> None:
    """To torch_tpu an empty one is set: a first call that failed would spoil the second."""
    facts = host()
    first = environments(plan(facts, runtime), facts)
    read = (*_tpu.OWNED, *(DERIVED if runtime == "torch_tpu" else ()))
    after = host(env=dict.fromkeys((*read, "RANK", "LOCAL_RANK", "WORLD_SIZE"), ""))
    assert environments(plan(after, runtime), after) == first


@pytest.mark.parametrize("runtime", ["pjrt", "jax", "torch_tpu"])
@pytest.mark.parametrize("name", [n for n in _tpu.OWNED if "BOUNDS" in n])
def test_malformed_bounds_reach_no_replica(runtime: str, name: str) -> None:
    """libtpu would end the process with status 1 and no word."""
    read = (*_tpu.OWNED, *(DERIVED if runtime == "torch_tpu" else ()))
    facts = host(env={name: "2x2x1", "TORCH_TPU_TOPOLOGY": "2x4x1"})
    for own in environments(plan(facts, runtime), facts):
        assert not any("x" in own.get(each, "") for each in read)


@pytest.mark.parametrize("runtime", ["pjrt", "jax", "torch_tpu"])
def test_the_worker_is_not_the_task(runtime: str) -> None:
    env = {
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        "TPU_WORKER_HOSTNAMES": "a,b",
        "TPU_WORKER_ID": "1",
        "CLOUD_TPU_TASK_ID": "7",  # of some process of the host
    }
    made = plan(host(chips=4, env=env), runtime)
    assert (made.hosts[0].index, made.world_size) == (1, 8)
    assert [r.rank for r in made.hosts[0].replicas] == [4, 5, 6, 7]
    if runtime != "torch_tpu":
        assert variables(made, "TPU_WORKER_ID") == ["4", "5", "6", "7"]


def test_a_host_without_chips_keeps_jax_away_from_libtpu() -> None:
    """Left alone it would take libtpu's lock and then fall back to the cores."""
    facts = HostFacts(cpus=(0, 1), frameworks=ALL)
    assert set(variables(plan(facts, "jax"), "JAX_PLATFORMS")) == {"cpu"}


@pytest.mark.parametrize("env", [{"TPU_SKIP_MDS_QUERY": ""}, {"TPU_SKIP_MDS_QUERY": "1"}])
def test_a_jax_that_sees_no_chips_costs_no_wait(env: dict[str, str]) -> None:
    """`import jax` of a version without these chips writes it, and it is undone for replicas."""
    facts = host("7x", 4, env=env, env_at_start={"TPU_SKIP_MDS_QUERY": ""})
    for own in environments(plan(facts), facts):
        assert own["TPU_SKIP_MDS_QUERY"]
        assert own["TPU_ACCELERATOR_TYPE"] == "tpu7x-8"


# --- several at once -----------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["pjrt", "jax", "torch_tpu"])
def test_two_launches_on_one_host_share_no_port_and_no_log_folder(runtime: str) -> None:
    halves = [Request(runtime=runtime, devices=part) for part in ((0, 1, 2, 3), (4, 5, 6, 7))]
    facts = host(frameworks=ALL if runtime == "torch_tpu" else FRAMEWORKS)
    found = []
    with (
        ports.lease(planner.plan(halves[0], facts).needs) as one,
        ports.lease(planner.plan(halves[1], facts).needs) as other,
    ):
        for request, held in zip(halves, (one, other), strict=True):
            made = planner.plan(request, facts, held.ports)
            found.append(environments(made, facts))
            assert len({own["TPU_LOG_DIR"] for own in found[-1]}) == 1
    for name in ("TPU_LOG_DIR", "TPU_RUNTIME_METRICS_PORTS", "TORCH_TPU_XPROF_SESSION_ID"):
        mine, theirs = ({own.get(name) for own in half} - {None} for half in found)
        assert not mine & theirs, name
    names = [n for n in ("TPU_RUNTIME_METRICS_PORTS", "TPU_PROCESS_PORT") if n in found[0][0]]
    for name in names:
        each = [port for half in found for own in half for port in own[name].split(",")]
        assert len(set(each)) == 8, name
