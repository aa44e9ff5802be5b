"""Inherited variables, contradictions and what imports write, on TPU hosts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.tpu_hosts import ALL, FRAMEWORKS, host, plan, variables
from xmp._plan import planner
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, Request


@pytest.mark.parametrize("runtime", ["pjrt", "jax"])
def test_impossible_values_are_dropped_with_a_note(runtime: str) -> None:
    sentence = "WARNING: could not determine TPU worker hostnames or IP addresses, please set it"
    env = {
        "TPU_PROCESS_ADDRESSES": "local",
        "TPU_WORKER_HOSTNAMES": sentence,
        "TPU_WORKER_ADDRS": sentence,
        "MEGASCALE_NUM_SLICES": "1",
        "MEGASCALE_COORDINATOR_ADDRESS": "gone",
        "XRT_TPU_CONFIG": "x;0;y:1",
        "TPU_NUM_DEVICES": "8",
    }
    made = plan(host(chips=4, env=env), runtime)
    unset = made.hosts[0].replicas[0].unset
    assert {*env} - {"TPU_PROCESS_ADDRESSES"} <= {*unset}
    assert "dropped TPU_PROCESS_ADDRESSES: 1 address for 4 replicas (inherited)" in made.notes
    for name in env:
        assert any(name in note for note in made.notes), name
    assert len(variables(made, "TPU_PROCESS_ADDRESSES")[0].split(",")) == 4  # type: ignore[union-attr]


def test_a_siblings_identity_is_never_inherited() -> None:
    env = {
        "CLOUD_TPU_TASK_ID": "3",
        "TPU_PROCESS_PORT": "9999",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "PJRT_LOCAL_PROCESS_RANK": "2",
        "PJRT_LOCAL_PROCESS_COUNT": "9",
    }
    made = plan(host(chips=4, env=env))
    assert variables(made, "CLOUD_TPU_TASK_ID") == ["0", "1", "2", "3"]
    assert variables(made, "TPU_PROCESS_PORT") == ["8476", "8477", "8478", "8479"]
    assert set(variables(made, "TPU_PROCESS_BOUNDS")) == {"2,2,1"}
    assert variables(made, "PJRT_LOCAL_PROCESS_RANK") == ["0", "1", "2", "3"]
    assert set(variables(made, "PJRT_LOCAL_PROCESS_COUNT")) == {"4"}


def test_addresses_that_fit_are_kept_and_their_ports_held() -> None:
    given = ",".join(f"localhost:{9000 + i}" for i in range(4))
    made = plan(host(chips=4, env={"TPU_PROCESS_ADDRESSES": given}))
    assert set(variables(made, "TPU_PROCESS_ADDRESSES")) == {given}
    assert variables(made, "TPU_PROCESS_PORT") == ["9000", "9001", "9002", "9003"]
    held = {need.port for need in made.needs if need.name.startswith("process.")}
    assert held == {9000, 9001, 9002, 9003}


def test_metrics_ports_of_the_platform_and_a_log_folder_of_the_user_are_kept() -> None:
    env = {"TPU_RUNTIME_METRICS_PORTS": "8431,8432,8433,8434", "TPU_LOG_DIR": "/logs"}
    made = plan(host(chips=4, env=env))
    for name in env:
        assert set(variables(made, name)) == {None}
        assert name not in made.hosts[0].replicas[0].unset
    short = plan(host(chips=8, env=env))
    assert len((variables(short, "TPU_RUNTIME_METRICS_PORTS")[0] or "").split(",")) == 8


@pytest.mark.parametrize(
    ("given", "kind", "skip"),
    [
        ({}, "v5litepod-8", "1"),
        ({"env": {"TPU_ACCELERATOR_TYPE": "v5e-8"}}, "v5e-8", "1"),
        # Any word means to skip, and torch_xla cannot be imported then without the type.
        ({"env": {"TPU_SKIP_MDS_QUERY": "false"}}, "v5litepod-8", "false"),
        ({"env": {"TPU_SKIP_MDS_QUERY": ""}}, "v5litepod-8", "1"),
        (
            {"env": {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-8"}},
            None,
            None,
        ),
        ({"metadata": {"accelerator-type": "v5litepod-8"}}, None, None),
    ],
)
def test_a_missing_metadata_server_costs_no_wait(
    given: dict[str, Any], kind: str | None, skip: str | None
) -> None:
    made = plan(host(**given))
    assert set(variables(made, "TPU_ACCELERATOR_TYPE")) == {kind}
    assert set(variables(made, "TPU_SKIP_MDS_QUERY")) == {skip}


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"TPU_HOST_BOUNDS": "2x2", "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1"}, "malformed bounds"),
        ({"TPU_ACCELERATOR_TYPE": "v5litepod-16"}, "has 4 hosts, but 1 of them"),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "2"}, "2 hosts, but TPU_WORKER_ID='2'"),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, "TPU_WORKER_ID=None"),
        (
            {
                "TPU_ACCELERATOR_TYPE": "v5litepod-16",
                "TPU_WORKER_HOSTNAMES": "a,b,c",
                "TPU_WORKER_ID": "0",
            },
            "has 4 hosts, but 3 of them",
        ),
        (
            {
                "TPU_ACCELERATOR_TYPE": "v5litepod-8",
                "TPU_WORKER_HOSTNAMES": "a,b",
                "TPU_WORKER_ID": "0",
                "NNODES": "2",
                "NODE_RANK": "1",
                "MASTER_ADDR": "a",
            },
            "says host 1 of 2, but the TPU runtime says worker 0 of 2",
        ),
    ],
)
def test_contradictions_are_refused(env: dict[str, str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(host(chips=4, env=env))


def test_unknown_chips_are_named_and_jax_is_offered() -> None:
    facts = HostFacts(tpu={"unknown": "0x0083"}, frameworks=ALL)
    with pytest.raises(PlanError, match=r"0x0083.*runtime=\"jax\".*xmp facts"):
        plan(facts)
    made = plan(facts, "jax")
    assert made.world_size == 1
    assert variables(made, "JAX_PLATFORMS") == ["tpu,cpu"]
    with pytest.raises(PlanError, match="0x0083"):
        planner.plan(Request(), facts)
    only_jax = HostFacts(tpu={"unknown": "0x0083"}, frameworks={"jax": "0.12", "libtpu": "0.1"})
    assert planner.plan(Request(), only_jax).runtime == "jax"
    with pytest.raises(PlanError, match="unknown TPU chips"):
        plan(facts, "jax", nprocs=4)


def test_torch_tpu_says_what_it_cannot() -> None:
    with pytest.raises(PlanError, match="does not know v3 chips"):
        plan(host("v3", 4), "torch_tpu")
    accel = HostFacts(tpu={"generation": "v4", "chips": 4, "nodes": "accel"}, frameworks=ALL)
    with pytest.raises(PlanError, match="/dev/vfio"):
        plan(accel, "torch_tpu")
    env = {
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        "TPU_WORKER_HOSTNAMES": "fd00::1,fd00::2",
        "TPU_WORKER_ID": "0",
    }
    with pytest.raises(PlanError, match="names and IPv4"):
        plan(host(chips=4, env=env), "torch_tpu")
    ipv6 = plan(host(chips=4, env=env))
    assert (variables(ipv6, "TPU_PROCESS_ADDRESSES")[0] or "").startswith("[fd00::1]:8476,")


def test_a_cpu_mesh_that_cannot_be_is_refused_before_it_starts() -> None:
    facts = HostFacts(env={"PJRT_DEVICE": "CPU"}, frameworks=FRAMEWORKS)
    assert planner.plan(Request(), facts).world_size == 1
    with pytest.raises(PlanError, match="cannot form a mesh across processes"):
        plan(facts, nprocs=2)
    assert plan(facts, nprocs=2, backend="gloo").world_size == 2


def test_jax_platforms_that_are_not_there() -> None:
    facts = HostFacts(env={"JAX_PLATFORMS": "tpu"}, frameworks=FRAMEWORKS)
    with pytest.raises(PlanError, match=r"JAX_PLATFORMS=tpu was given.*Possible here: cpu"):
        plan(facts, "jax")
    on_chips = host(env={"JAX_PLATFORMS": "cpu"})
    assert set(variables(plan(on_chips, "jax", nprocs=2), "TPU_VISIBLE_CHIPS")) == {None}


def test_the_coordinator_has_a_port_of_its_own_beside_eight_cores() -> None:
    made = plan(host("7x", 4), "jax")
    ports = [need.port or need.documented for need in made.needs]
    assert len(set(ports)) == len(ports)
