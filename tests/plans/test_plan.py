"""Plans: the choice of a runtime, checks, and what replicas of every runtime get."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.support.plans import given
from xmp.__main__ import main
from xmp._plan import planner, runtimes
from xmp._words import types
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, JobPlan, PortNeed, ReplicaPlan, Request

TORCH = {"torch": "2.13.0+cpu"}
CUDA = {"torch": "2.13.0+cu13.0"}
JAX = {"jax": "0.10.2", "jaxlib": "0.10.2"}
GPUS = {"vendor": "nvidia", "count": 8}


def host(**given: Any) -> HostFacts:
    return HostFacts(**{"cpus": (0, 1, 2, 3), **given})


def plan(facts: HostFacts | None = None, **request: Any) -> JobPlan:
    return planner.plan(Request(**request), facts or host())


def replica(made: JobPlan, local: int = 0) -> ReplicaPlan:
    return made.hosts[0].replicas[local]


# --- which runtime -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "request_", "runtime", "why"),
    [
        (host(), {"runtime": "jax"}, "jax", "runtime='jax'"),
        (host(env={"XMP_RUNTIME": "fake"}), {}, "fake", "XMP_RUNTIME=fake"),
        (host(env={"XMP_RUNTIME": "fake"}), {"runtime": "cpu"}, "cpu", "runtime='cpu'"),
        (host(frameworks=TORCH, loaded=("torch",)), {}, "cpu", "torch is loaded"),
        (host(frameworks={**TORCH, **JAX}, loaded=("jax",)), {}, "jax", "jax is loaded"),
        (host(frameworks=CUDA, gpus=GPUS, loaded=("torch",)), {}, "cuda", "torch is loaded; 8 NV"),
        (host(frameworks=CUDA, gpus=GPUS), {}, "cuda", "8 NVIDIA GPUs and torch"),
        (host(frameworks={**CUDA, **JAX}, gpus=GPUS, loaded=("jax",)), {}, "jax", "jax is loaded"),
        (host(frameworks=TORCH, gpus=GPUS), {}, "cpu", "no accelerator"),
        (host(frameworks=JAX, gpus=GPUS), {}, "cpu", "no accelerator"),
        (host(frameworks={**TORCH, **JAX}), {}, "cpu", "no accelerator"),
        (
            host(frameworks={**TORCH, **JAX}, loaded=("torch", "jax")),
            {},
            "jax",
            "jax and torch are loaded",
        ),
        (host(), {}, "cpu", "no accelerator"),
    ],
)
def test_the_choice_and_its_reason(
    facts: HostFacts, request_: dict[str, Any], runtime: str, why: str
) -> None:
    chosen, reason, _ = planner.choose(Request(**request_), facts)
    assert chosen.name == runtime
    assert why in reason


def test_the_plan_names_the_other_runtimes_that_would_do() -> None:
    made = plan(host(frameworks={**CUDA, **JAX}, gpus=GPUS))
    assert (made.runtime, made.others) == ("cuda", ("jax", "cpu"))


def test_a_cpu_build_of_torch_on_a_gpu_host_is_noted() -> None:
    made = plan(host(frameworks=TORCH, gpus=GPUS))
    assert made.runtime == "cpu"
    assert any("8 nvidia GPUs" in note and "2.13.0+cpu" in note for note in made.notes)


def test_a_named_runtime_needs_its_package() -> None:
    with pytest.raises(PlanError, match=r"'jax' needs .*jax.* not installed.*pip install"):
        plan(host(frameworks={**TORCH, "jax": None}), runtime="jax")


# --- how many ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "count"),
    [
        (host(cpus=tuple(range(4))), 4),
        (host(cpus=tuple(range(64))), 8),
        (host(cpus=tuple(range(64)), cpu_quota=3.9), 3),
        (host(cpus=(7,), cpu_quota=0.5), 1),
    ],
)
def test_none_on_cpu_is_the_usable_cores_at_most_eight(facts: HostFacts, count: int) -> None:
    assert plan(facts).world_size == count
    assert plan(facts, nprocs=-1).world_size == count
    assert plan(facts, nprocs=50).world_size == 50


@pytest.mark.parametrize("nprocs", [0, -3])
def test_a_number_that_is_none_is_refused(nprocs: int) -> None:
    with pytest.raises(PlanError, match=rf"nprocs={nprocs} .*1 or more"):
        plan(nprocs=nprocs)


@pytest.mark.parametrize("nprocs", [2.5, "4", True])
def test_a_wrong_type_is_a_type_error(nprocs: object) -> None:
    with pytest.raises(TypeError, match=rf"nprocs={nprocs!r} is a "):
        plan(nprocs=nprocs)


def test_a_number_that_does_not_fit_is_refused_with_those_that_do() -> None:
    facts = host(env={"FAKE_CHIPS": "8"})
    with pytest.raises(PlanError, match=r"nprocs=3 .*8 pretend chips.*'fake': 1, 2, 4, 8"):
        plan(facts, runtime="fake", nprocs=3)
    with pytest.raises(PlanError, match=r"nprocs=9 .*8 visible GPUs.*1, 2, 3, 4, 5, 6, 7, 8"):
        plan(host(gpus=GPUS), runtime="cuda", nprocs=9)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ((8,), r"devices=\[8\]: 8 is out of range. Allowed: 0 to 7"),
        ((-1,), r"-1 is out of range"),
        ((1, 1), r"devices=\[1, 1\] repeats"),
        ((), r"devices=\[\] names no device"),
    ],
)
def test_devices_that_are_not_there(devices: tuple[int, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(host(gpus=GPUS), runtime="cuda", devices=devices)


def test_devices_give_the_number_or_must_agree_with_it() -> None:
    facts = host(gpus=GPUS)
    assert plan(facts, runtime="cuda", devices=(4, 5)).world_size == 2
    assert plan(facts, runtime="cuda", devices=(4, 5), nprocs=2).world_size == 2
    with pytest.raises(PlanError, match=r"nprocs=3 and devices=\[4, 5\] disagree"):
        plan(facts, runtime="cuda", devices=(4, 5), nprocs=3)
    with pytest.raises(PlanError, match=r"devices=\[0\].*'cpu' has no devices"):
        plan(runtime="cpu", devices=(0,))


# --- variables -----------------------------------------------------------------------------------


def test_every_replica_knows_its_place() -> None:
    made = plan(nprocs=3, runtime="cpu")
    for rank in range(3):
        expected = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "3",
            "LOCAL_WORLD_SIZE": "3",
            "NODE_RANK": "0",
            "GROUP_RANK": "0",
            "NNODES": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        assert {name: given(made, rank)[name] for name in expected} == expected
        assert (replica(made, rank).rank, replica(made, rank).process) == (rank, rank)


def test_a_leased_port_replaces_the_documented_one() -> None:
    made = plan(nprocs=2, runtime="cpu")
    assert made.needs == (PortNeed("store", "listen", documented=29500),)
    again = planner.plan(Request(nprocs=2, runtime="cpu"), host(), {"store": 40123})
    assert given(again)["MASTER_PORT"] == "40123"


def test_the_same_request_gives_the_same_plan_and_it_pickles() -> None:
    assert plan(nprocs=4) == plan(nprocs=4)
    assert pickle.loads(pickle.dumps(plan(nprocs=4))) == plan(nprocs=4)


def test_variables_of_an_outer_launch_are_dropped_with_a_note() -> None:
    outer = {
        "TORCHELASTIC_RUN_ID": "x",
        "ROLE_RANK": "1",
        "SLURM_PROCID": "3",
        "SLURM_JOB_ID": "77",
        "OMPI_COMM_WORLD_RANK": "1",
    }
    made = plan(host(env=outer), nprocs=2, runtime="cpu")
    dropped = {"TORCHELASTIC_RUN_ID", "ROLE_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"}
    assert set(replica(made).unset) == dropped
    notes = "\n".join(made.notes)
    assert all(name in notes for name in (*dropped, "torchrun", "Slurm", "MPI"))


def test_rank_variables_of_an_outer_launch_are_replaced() -> None:
    made = plan(host(env={"RANK": "5", "LOCAL_RANK": "5"}), nprocs=2, runtime="cpu")
    assert (given(made)["RANK"], given(made)["LOCAL_RANK"]) == ("0", "0")
    assert replica(made).unset == ()


def test_inside_a_replica_its_device_is_not_given_away() -> None:
    inner = host(env={"XMP_DEVICE": "cuda:1"}, gpus=GPUS)
    with pytest.raises(PlanError, match=r"replica that holds cuda:1.*runtime=\"cpu\""):
        plan(inner, runtime="cuda")
    assert plan(inner, runtime="cpu", nprocs=2).world_size == 2


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"])
def test_env_cannot_set_a_replicas_identity(name: str) -> None:
    with pytest.raises(PlanError, match=f"env= sets {name}"):
        plan(host(gpus=GPUS), runtime="cuda", env=(((name, "0"),),))


def test_env_wins_over_inherited_values_and_our_defaults() -> None:
    facts = host(env={"NCCL_DEBUG": "WARN"})
    extra = (("GLOO_SOCKET_IFNAME", "eth1"), ("NCCL_DEBUG", "INFO"), ("OMP_NUM_THREADS", "3"))
    made = plan(facts, nprocs=2, runtime="cpu", env=(extra,))
    assert dict(extra).items() <= given(made, 1).items()
    assert replica(made).threads == 3


def test_env_for_each_replica() -> None:
    made = plan(nprocs=2, runtime="cpu", env=((("A", "0"),), (("A", "1"),)))
    assert [given(made, i)["A"] for i in range(2)] == ["0", "1"]
    with pytest.raises(PlanError, match="3 entries for 2 replicas"):
        plan(nprocs=2, runtime="cpu", env=((), (), ()))


def test_an_interface_that_the_user_chose_is_kept() -> None:
    made = plan(host(env={"GLOO_SOCKET_IFNAME": "eth0"}), nprocs=2, runtime="cpu")
    assert "GLOO_SOCKET_IFNAME" not in given(made)
    assert "GLOO_SOCKET_IFNAME" not in replica(made).unset


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        ({"no_proxy": "x"}, None),
        ({"https_proxy": "http://p:3128"}, "localhost,127.0.0.1,::1"),
        ({"HTTP_PROXY": "p", "NO_PROXY": "a.b, localhost"}, "a.b,localhost,127.0.0.1,::1"),
        ({"http_proxy": "p", "no_proxy": "*"}, None),
    ],
)
def test_our_own_addresses_bypass_a_proxy(env: dict[str, str], expected: str | None) -> None:
    variables = given(plan(host(env=env), nprocs=2, runtime="cpu"))
    assert variables.get("no_proxy") == variables.get("NO_PROXY") == expected
    assert "https_proxy" not in variables


# --- threads and cores ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "request_", "threads"),
    [
        (host(cpus=tuple(range(8))), {"nprocs": 2}, 4),
        (host(cpus=tuple(range(8)), cpu_quota=4.0), {"nprocs": 2}, 2),
        (host(cpus=(0, 1)), {"nprocs": 8}, 1),
        (host(env={"OMP_NUM_THREADS": "3"}), {"nprocs": 2}, 3),
        (host(env={"OMP_NUM_THREADS": "3,2"}), {"nprocs": 2}, 3),
        (host(env={"OMP_NUM_THREADS": "many"}), {"nprocs": 2}, 2),
        (host(env={"OMP_NUM_THREADS": "3"}), {"nprocs": 2, "threads": 5}, 5),
    ],
)
def test_threads(facts: HostFacts, request_: dict[str, Any], threads: int) -> None:
    made = plan(facts, runtime="cpu", **request_)
    assert replica(made).threads == threads
    assert given(made)["OMP_NUM_THREADS"] == str(threads)


@pytest.mark.parametrize(
    ("bind", "nprocs", "cores"),
    [
        (None, 2, [(), ()]),
        (True, 2, [(0, 1), (2, 3)]),
        ("cores", 3, [(0,), (1,), (2, 3)]),
        ("cores", 6, [(0,), (1,), (2,), (3,), (0,), (1,)]),
        ("numa", 4, [(0, 2), (0, 2), (1, 3), (1, 3)]),
        ("numa", 1, [(0, 2)]),
    ],
)
def test_cores(bind: bool | str | None, nprocs: int, cores: list[tuple[int, ...]]) -> None:
    made = plan(host(numa=((0, 2, 4), (1, 3, 5), (9,))), runtime="cpu", nprocs=nprocs, bind=bind)
    assert [r.cpus for r in made.hosts[0].replicas] == cores


def test_an_unknown_binding_is_refused() -> None:
    with pytest.raises(PlanError, match="bind='socket' is not known"):
        plan(bind="socket")


# --- process groups and settings -----------------------------------------------------------------


def test_a_backend_is_asked_for_or_left_to_the_function() -> None:
    assert dict(replica(plan(runtime="cpu")).settings) == {
        "device_type": "cpu",
        "default_backend": "gloo",
    }
    assert dict(replica(plan(runtime="cpu", backend="auto")).settings)["backend"] == "gloo"
    facts = host(gpus=GPUS)
    assert dict(replica(plan(facts, runtime="cuda", backend="gloo")).settings)["backend"] == "gloo"


@pytest.mark.parametrize(("runtime", "backend"), [("cpu", "nccl"), ("jax", "gloo")])
def test_a_backend_that_cannot_work_is_refused(runtime: str, backend: str) -> None:
    with pytest.raises(PlanError, match=f"backend='{backend}' does not work with .*'{runtime}'"):
        plan(runtime=runtime, backend=backend)


# --- data for the engine -------------------------------------------------------------------------


def test_the_engine_learns_of_devices_as_data() -> None:
    rules = plan(runtime="cpu").fork_rules
    assert {"/dev/accel*", "/dev/vfio/[0-9]*"} <= set(rules.device_files)
    assert ("libcuda.so.1", "cuDeviceGetCount", 3) in rules.driver_probes
    assert dict(rules.quiet) == {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def test_what_a_template_preloads() -> None:
    facts = host(frameworks={**TORCH, **JAX}, loaded=("torch", "numpy", "numpy.random"))
    assert plan(facts, runtime="cpu").preload == ("torch", "numpy", "numpy.random")
    assert plan(facts, runtime="jax").preload[-1] == "jax"
    assert "torch" in plan(host(frameworks=TORCH), runtime="cpu", backend="gloo").preload
    assert plan(host(), runtime="cpu").preload == ()


def test_changed_numbers_and_ports_are_no_part_of_a_templates_key() -> None:
    made = plan(runtime="cpu")
    key, later = made.import_variables, made.first_use_variables
    for name in ("RANK", "MASTER_PORT", "WORLD_SIZE", "XLA_FLAGS", "TPU_VISIBLE_CHIPS"):
        assert not runtimes.matches(name, key)
    assert runtimes.matches("OMP_NUM_THREADS", later)
    for name in ("JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES"):  # called after the fork by JAX's own
        assert runtimes.matches(name, key)
        assert not runtimes.matches(name, later)
        assert runtimes.matches(name, plan(runtime="jax").first_use_variables)
    for name in ("JAX_ENABLE_X64", "PYTHONPATH", "TORCH_DEVICE_BACKEND_AUTOLOAD"):
        assert runtimes.matches(name, key)
        assert not runtimes.matches(name, later)


# --- as text -------------------------------------------------------------------------------------


def test_facts_survive_json_and_unknown_keys_are_ignored() -> None:
    facts = host(env={"A": "1"}, gpus=GPUS, numa=((0, 1), (2, 3)), frameworks={"torch": None})
    data = planner.facts_to_json(facts)
    assert planner.facts_from_json({**data, "colour": "blue", "memory_bytes": None}) == facts
    with pytest.raises(PlanError, match="version 2"):
        planner.facts_from_json({**data, "version": 2})


def test_facts_requests_and_plans_cannot_be_changed() -> None:
    kinds = [each for each in vars(types).values() if dataclasses.is_dataclass(each)]
    assert ReplicaPlan in kinds
    assert [k.__name__ for k in kinds if not k.__dataclass_params__.frozen] == []


def test_the_json_of_a_plan() -> None:
    data = planner.to_json(plan(host(env={"SLURM_PROCID": "1"}), nprocs=2, runtime="cpu"))
    assert (data["version"], data["runtime"], data["world_size"]) == (1, "cpu", 2)
    first = data["hosts"][0]["replicas"][0]
    assert (first["rank"], first["local_rank"], first["process"]) == (0, 0, 0)
    assert first["set"]["WORLD_SIZE"] == "2"
    assert first["unset"] == ["SLURM_PROCID"]


def test_a_person_can_read_what_is_shared_once_and_what_differs_per_rank() -> None:
    text = planner.explain(plan(nprocs=4, runtime="fake"))
    assert text.count("WORLD_SIZE=4\n") == 2  # and LOCAL_WORLD_SIZE
    rows = [line for line in text.splitlines() if "FAKE_VISIBLE_CHIPS=" in line]
    assert [row.split()[:3] for row in rows] == [[str(i), "0", f"fake:{i}"] for i in range(4)]


def test_a_plan_prints_as_the_command_shows_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    facts = host(frameworks=TORCH, env={"SLURM_PROCID": "1"})
    recorded = tmp_path / "facts.json"
    recorded.write_text(json.dumps(planner.facts_to_json(facts)))
    print(plan(facts, nprocs=2))
    printed = capsys.readouterr().out
    assert main(["plan", "-n", "2", "--facts", str(recorded)]) == 0
    assert capsys.readouterr().out == printed
    assert printed.startswith("runtime   cpu: no accelerator")
    assert repr(plan(facts, nprocs=2)) == "<JobPlan runtime='cpu' world_size=2>"
