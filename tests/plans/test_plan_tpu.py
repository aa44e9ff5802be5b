"""TPU plans: slices, parts of hosts, inherited variables, and refused requests."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.tpu_hosts import ALL, FRAMEWORKS, host, plan, variables
from xmp._plan import planner, topology
from xmp._plan.runtimes._tpu import _count
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, JobPlan, Request

SLICES = json.loads((Path(__file__).parent / "slices.json").read_text())


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(","))


# --- slices --------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", SLICES, ids=lambda row: f"{row['type']}-{row['hosts']}")
def test_the_arithmetic_gives_every_slice_of_the_table(row: dict[str, Any]) -> None:
    made = topology.slice_of_type(row["type"], row["chips_per_host"])
    assert made.generation.name == row["generation"]
    assert made.chips == topology.parse_topology(row["topology"])
    assert made.per_host == numbers(row["chip_bounds"])
    assert made.host_bounds == numbers(row["host_bounds"])
    assert made.process_bounds == numbers(row["process_bounds"])
    assert (made.hosts, made.devices) == (row["hosts"], row["devices"])


def test_a_slice_that_is_in_no_table() -> None:
    generation = topology.generation_named("v5p")
    assert generation is not None
    made = topology.slice_of(generation, (4, 4, 12), (2, 2, 1))
    assert (made.host_bounds, made.hosts) == ((2, 2, 12), 48)
    with pytest.raises(PlanError, match="cannot be tiled"):
        topology.slice_of(generation, (3, 4, 4), (2, 2, 1))


@pytest.mark.parametrize("text", ["v5litepod-7", "v4-7", "tpu-v6e-slice", "v9-8", "", "v5p"])
def test_types_that_make_no_slice(text: str) -> None:
    with pytest.raises(PlanError):
        topology.slice_of_type(text)


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("2,2,1", (2, 2, 1)),
        ("2,2,1,2", (2, 2, 1, 2)),
        ("2, 2, 1", (2, 2, 1)),
        ("2x2x1", None),
        ("2,2", None),
        ("0,1,1", None),
        ("", None),
        ("a,b,c", None),
    ],
)
def test_bounds_that_the_library_would_end_on(text: str, bounds: tuple[int, ...] | None) -> None:
    assert topology.parse_bounds(text) == bounds


def test_one_host_of_eight_or_two_of_four() -> None:
    one = plan(host(env={"TPU_ACCELERATOR_TYPE": "v5litepod-8"}))
    assert one.world_size == 8
    env = {
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        "TPU_WORKER_HOSTNAMES": "a,b",
        "TPU_WORKER_ID": "1",
    }
    two = plan(host(chips=4, env=env))
    assert two.world_size == 8
    assert variables(two, "CLOUD_TPU_TASK_ID") == ["4", "5", "6", "7"]
    assert set(variables(one, "TPU_PROCESS_BOUNDS") + variables(two, "TPU_PROCESS_BOUNDS")) == {
        "2,4,1"
    }


def planned(count: int) -> tuple[JobPlan, int]:
    """A slice of so many hosts, and the calls of functions that its plan has taken."""
    names = ",".join(f"w{i}" for i in range(count))
    hosts = [
        host(
            "v5p",
            4,
            address=f"10.0.{i}.2",
            env={
                "TPU_ACCELERATOR_TYPE": f"v5p-{8 * count}",
                "TPU_WORKER_ID": str(i),
                "TPU_WORKER_HOSTNAMES": names,
                "TPU_SKIP_MDS_QUERY": "1",
            },
        )
        for i in range(count)
    ]
    calls = 0

    def count_calls(frame: object, event: str, _: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count_calls)
    try:
        made = planner.plan(Request(runtime="pjrt"), hosts)
    finally:
        sys.setprofile(None)
    return made, calls


def test_a_plan_takes_as_much_for_each_host_of_a_large_slice() -> None:
    planned(8)  # what is kept from then on
    _, few = planned(32)
    made, many = planned(256)
    assert made.world_size == 1024
    assert variables(made, "CLOUD_TPU_TASK_ID") == [str(i) for i in range(1024)]
    assert many < 10 * few


def test_hosts_are_ordered_by_the_runtimes_own_worker_id() -> None:
    env = {"TPU_ACCELERATOR_TYPE": "v5litepod-16", "TPU_WORKER_HOSTNAMES": "a,b,c,d"}
    hosts = [
        host(chips=4, address=f"10.0.0.{i}", env={**env, "TPU_WORKER_ID": str(i)})
        for i in (2, 0, 3, 1)
    ]
    made = planner.plan(Request(runtime="jax"), hosts)
    assert [h.address for h in made.hosts] == [f"10.0.0.{i}" for i in range(4)]
    assert [r.rank for h in made.hosts for r in h.replicas] == list(range(16))
    with pytest.raises(PlanError, match=r"workers \[2, 0, 3\]. Allowed: each of 0 to 2 once"):
        planner.plan(Request(runtime="jax"), hosts[:3])


def test_every_host_gets_the_leased_ports() -> None:
    env = {"TPU_ACCELERATOR_TYPE": "v5litepod-8", "TPU_WORKER_HOSTNAMES": "a,b"}
    hosts = [
        host(chips=4, address=f"10.0.0.{i}", env={**env, "TPU_WORKER_ID": str(i)}) for i in (0, 1)
    ]
    request = Request(runtime="pjrt")
    needs = planner.plan(request, hosts).needs
    assert {n.host for n in needs if n.name.startswith("process.")} == {0, 1}
    ports = {need.name: 40000 + i for i, need in enumerate(needs)}
    made = planner.plan(request, hosts, ports)
    addresses = set(variables(made, "TPU_PROCESS_ADDRESSES"))
    wanted = [f"10.0.0.{h}:{ports[f'process.{h}.{i}']}" for h in (0, 1) for i in range(4)]
    assert addresses == {",".join(wanted)}
    assert variables(made, "TPU_PROCESS_PORT") == [entry.split(":")[1] for entry in wanted]


# --- parts of a host -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("generation", "runtime", "fits"),
    [
        ("v5e", "pjrt", (1, 2, 4, 8)),
        ("v5e", "jax", (1, 2, 4, 8)),
        ("v5e", "torch_tpu", (1, 4, 8)),
        ("v4", "pjrt", (1, 2, 4)),
        ("v3", "pjrt", (1, 2, 4, 8)),
        ("v2", "jax", (1, 2, 4)),
        ("7x", "pjrt", (1, 2, 4, 8)),
        ("7x", "torch_tpu", (1, 2, 4, 8)),
        ("7x", "jax", (1, 2, 4, 8)),
    ],
)
def test_the_numbers_that_fit_a_host(generation: str, runtime: str, fits: tuple[int, ...]) -> None:
    facts = host(generation, 8 if generation == "v5e" else 4)
    assert plan(facts, runtime).world_size == fits[-1]
    for nprocs in range(1, 10):
        if nprocs in fits:
            assert len(plan(facts, runtime, nprocs=nprocs).hosts[0].replicas) == nprocs
        else:
            listed = ", ".join(map(str, fits))
            with pytest.raises(PlanError, match=f"nprocs={nprocs} does not fit.*: {listed}, or"):
                plan(facts, runtime, nprocs=nprocs)


def test_two_replicas_share_a_process_on_v3() -> None:
    made = plan(host("v3", 4))
    replicas = made.hosts[0].replicas
    assert [r.process for r in replicas] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [r.rank for r in replicas] == list(range(8))
    assert replicas[0].set[:-1] == replicas[1].set[:-1]  # the last is XMP_DEVICE
    assert variables(made, "RANK") == [None] * 8
    assert dict(replicas[0].settings)["threads_per_process"] == "2"
    assert set(variables(made, "TPU_PROCESS_BOUNDS")) == {"2,2,1"}


def test_what_two_replicas_of_a_process_cannot_have() -> None:
    """A process is in one process group, has one environment, and owns whole chips."""
    two = ((("A", "0"),), (("A", "1"),))
    refused: list[tuple[dict[str, Any], str]] = [
        ({"devices": (0, 1)}, "a process owns a chip"),
        ({"backend": "auto"}, "only once"),
        ({"nprocs": 2, "env": two}, "share its environment"),
    ]
    for options, words in refused:
        with pytest.raises(PlanError, match=words):
            plan(host("v3", 4), **options)
    assert plan(host("v3", 4), nprocs=1, backend="auto").world_size == 1
    assert plan(host("v3", 4), nprocs=2, env=two[:1]).world_size == 2


def test_each_core_of_7x_can_be_a_process() -> None:
    for nprocs, bounds in ((8, "2,2,1,2"), (4, "1,2,1,2"), (2, "1,1,1,2")):
        made = plan(host("7x", 4), nprocs=nprocs)
        assert set(variables(made, "TPU_PROCESS_BOUNDS")) == {bounds}
        assert set(variables(made, "TPU_CHIPS_PER_PROCESS_BOUNDS")) == {"1,1,1,1"}
        assert variables(made, "TPU_VISIBLE_CHIPS") == [str(i) for i in range(nprocs)]


def test_jax_alone_takes_the_whole_host() -> None:
    made = plan(host(), "jax", nprocs=1)
    assert variables(made, "TPU_CHIPS_PER_PROCESS_BOUNDS") == ["2,4,1"]
    assert variables(made, "TPU_PROCESS_BOUNDS") == ["1,1,1"]
    assert variables(made, "TPU_VISIBLE_CHIPS") == [None]


def test_devices_are_neighbours() -> None:
    made = plan(host(), devices=(4, 5, 6, 7))
    assert variables(made, "TPU_VISIBLE_CHIPS") == ["4", "5", "6", "7"]
    assert [r.device for r in made.hosts[0].replicas] == ["tpu:4", "tpu:5", "tpu:6", "tpu:7"]
    for wrong in ((1, 2), (1, 0), (0, 2), (2, 3, 4, 5)):
        with pytest.raises(PlanError, match="do not lie in one box"):
            plan(host(), devices=wrong)


def test_a_mask_is_respected() -> None:
    facts = host(env={"TPU_VISIBLE_CHIPS": "2,3"})
    made = plan(facts)
    assert variables(made, "TPU_VISIBLE_CHIPS") == ["2", "3"]
    assert set(variables(made, "TPU_PROCESS_BOUNDS")) == {"1,2,1"}
    whole = plan(facts, "jax", nprocs=1)
    assert variables(whole, "TPU_VISIBLE_CHIPS") == ["2,3"]
    assert variables(whole, "TPU_CHIPS_PER_PROCESS_BOUNDS") == ["1,2,1"]
    for wrong in ("8", "1,1", "x"):
        with pytest.raises(PlanError, match="does not name chips of this host"):
            plan(host(env={"TPU_VISIBLE_CHIPS": wrong}))


def test_one_host_of_a_larger_slice() -> None:
    env = {
        "TPU_ACCELERATOR_TYPE": "v5litepod-16",
        "TPU_TOPOLOGY": "4x4",
        "TPU_WORKER_HOSTNAMES": "a,b,c,d",
        "TPU_WORKER_ID": "2",
    }
    made = plan(host(chips=4, env={**env, "NNODES": "1"}))
    assert made.world_size == 4
    assert set(variables(made, "TPU_PROCESS_BOUNDS")) == {"2,2,1"}
    assert variables(made, "CLOUD_TPU_TASK_ID") == ["0", "1", "2", "3"]


# --- which runtime -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "runtime"),
    [
        (host(loaded=("torch",)), "torch_tpu"),
        (host(loaded=("torch", "torch_xla")), "pjrt"),
        (host(loaded=("torch", "jax")), "jax"),
        (host(loaded=("jax",)), "jax"),
        (host(), "torch_tpu"),
        (host(frameworks=FRAMEWORKS), "pjrt"),
        (host(frameworks=FRAMEWORKS, loaded=("torch",)), "pjrt"),
        (host(frameworks={"jax": "0.10.2", "libtpu": "0.0.51"}), "jax"),
        (host(frameworks={"torch": "2.9.1+cpu"}), "cpu"),
        # import torch brings an installed torch_tpu along, on any host
        (HostFacts(frameworks=ALL, loaded=("torch", "torch_tpu")), "cpu"),
        (host(env={"PJRT_DEVICE": "TPU"}, frameworks={"jax": "0.10.2"}, loaded=("jax",)), "jax"),
        (host(env={"TORCH_TPU_TOPOLOGY": "2,4,1"}, loaded=("jax",)), "torch_tpu"),
    ],
)
def test_the_choice_on_tpu_hosts(facts: HostFacts, runtime: str) -> None:
    assert planner.choose(Request(), facts)[0].name == runtime


# --- what imports write --------------------------------------------------------------------------

BOTH = (
    "--mine=1 --xla_tpu_use_enhanced_launch_barrier=true --xla_latency_hiding_scheduler_rerun=1 "
    "--xla_tpu_prefer_async_allgather_to_allreduce=true --xla_tpu_enable_flash_attention=false"
)


@pytest.mark.parametrize(
    ("runtime", "expected"),
    [
        ("jax", "--mine=1 --xla_tpu_use_enhanced_launch_barrier=true"),
        ("pjrt", BOTH.replace("barrier=true", "barrier=false")),
        ("cpu", "--mine=1"),
    ],
)
def test_each_runtime_has_the_flags_of_a_fresh_process(runtime: str, expected: str) -> None:
    facts = host(
        "v6e",
        1,
        env={"LIBTPU_INIT_ARGS": BOTH, "TPU_ML_PLATFORM": "JAX"},
        env_at_start={"LIBTPU_INIT_ARGS": "--mine=1", "TPU_ML_PLATFORM": ""},
        loaded=("jax", "torch_xla"),
    )
    made = plan(facts, runtime, nprocs=1)
    assert variables(made, "LIBTPU_INIT_ARGS") == [expected]
    platform = {"jax": "JAX", "pjrt": "PyTorch/XLA", "cpu": None}[runtime]
    assert variables(made, "TPU_ML_PLATFORM") == [platform]
    assert ("TPU_ML_PLATFORM" in made.hosts[0].replicas[0].unset) == (platform is None)


def test_a_flag_of_the_user_wins_over_that_of_an_import() -> None:
    mine = "--xla_tpu_use_enhanced_launch_barrier=true"
    made = plan(host("v6e", 1, env={"LIBTPU_INIT_ARGS": mine}), nprocs=1)
    words = (variables(made, "LIBTPU_INIT_ARGS")[0] or "").split()
    assert mine in words
    assert "--xla_tpu_use_enhanced_launch_barrier=false" not in words


def test_the_template_leaves_alone_what_looks_for_chips() -> None:
    for runtime in ("jax", "torch_tpu"):  # torch_tpu's own replicas load it after the fork
        made = plan(host(), runtime)
        assert dict(made.fork_rules.quiet)["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
        assert made.not_preloaded == ("torch_xla", "torch_tpu")
    without = planner.plan(Request(runtime="cpu"), HostFacts(frameworks={"torch_tpu": "0.2.0"}))
    assert without.not_preloaded == ("torch_tpu",)
    loaded = host(loaded=("torch", "torch_xla", "torch_tpu", "numpy"))
    assert plan(loaded).preload == ("torch", "numpy")


@pytest.mark.parametrize(
    ("shown", "kind", "count"),
    [
        (8, "v5litepod-16", 8),  # the type alone would allow hosts of four
        (4, "v5litepod-16", 4),
        (8, "v5litepod-4", 4),  # the kernel may show functions
        (0, "v5litepod-8", 4),
    ],
)
def test_the_chips_of_a_host(shown: int, kind: str, count: int) -> None:
    generation = topology.generation_of_type(kind)
    assert generation is not None
    facts = HostFacts(tpu={"chips": str(shown)})
    assert _count(facts, {"TPU_ACCELERATOR_TYPE": kind}, generation) == count
