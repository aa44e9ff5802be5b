"""Plans, compared with what libtpu itself makes of them: every slice, every host, every rank.

It needs no TPU: libtpu derives its driver's flags from the environment and logs them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from xmp._plan import planner
from xmp._words.types import HostFacts, JobPlan, Request

pytestmark = pytest.mark.libtpu

HERE = Path(__file__).parent
SLICES = json.loads((HERE.parent / "plans" / "slices.json").read_text())
FRAMEWORKS = {"torch": "2.9.0+cpu", "torch_xla": "2.9.0", "jax": "0.10.2", "libtpu": "0.0.51"}
NAMES = {"7x": "tpu7x"}


def ask(questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One oracle process per core, each with an equal share of the questions."""
    workers = max(os.cpu_count() or 1, 1)
    size = -(-len(questions) // workers)
    shares = [questions[i : i + size] for i in range(0, len(questions), size)]
    with ThreadPoolExecutor(workers) as pool:
        return [answer for answers in pool.map(run_oracle, shares) for answer in answers]


def run_oracle(questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "oracle.py")],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        timeout=1500,  # against a hang alone: beside other work it took five minutes
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def hosts_of(row: dict[str, Any]) -> list[HostFacts]:
    """The facts of every host of a slice, as GKE presents them."""
    names = [f"10.0.{i}.2" for i in range(row["hosts"])]
    devices_per_chip = 2 if row["generation"] in ("v2", "v3", "7x") else 1
    env = {
        "TPU_ACCELERATOR_TYPE": row["type"],
        "TPU_TOPOLOGY": row["topology"],
        "TPU_SKIP_MDS_QUERY": "true",
        "TPU_WORKER_HOSTNAMES": ",".join(names) if len(names) > 1 else "localhost",
    }
    return [
        HostFacts(
            address=name,
            env={**env, "TPU_WORKER_ID": str(i)},
            tpu={
                "generation": row["generation"],
                "chips": row["chips_per_host"],
                "devices": row["chips_per_host"] * devices_per_chip,
            },
            frameworks=FRAMEWORKS,
        )
        for i, name in enumerate(names)
    ]


def environments(made: JobPlan) -> list[dict[str, str]]:
    """The variables of every process, in the order of ranks."""
    processes: dict[tuple[int, int], dict[str, str]] = {}
    for host in made.hosts:
        for replica in host.replicas:
            processes[host.index, replica.process] = dict(replica.set)
    return list(processes.values())


def expected(row: dict[str, Any], env: dict[str, str], task: int) -> dict[str, str]:
    """What the plan means, in libtpu's own words, worked out from the table and not the plan."""
    units = row["chips_per_host"] * (2 if row["generation"] == "7x" else 1)
    local = task % units
    names = [f"10.0.{i}.2" for i in range(row["hosts"])] if row["hosts"] > 1 else ["localhost"]
    return {
        "deepsea_hal_included_devs": str(local),
        "deepsea_chips_per_host_bounds": "1,1,1,1" if row["generation"] == "7x" else "1,1,1",
        "deepsea_host_bounds": row["process_bounds"],
        "deepsea_slice_builder_worker_port": str(8476 + local),
        "deepsea_slice_builder_worker_addresses": ",".join(
            f"{name}:{8476 + i}" for name in names for i in range(units)
        ),
        # libtpu picks the entry by its task id: so it has understood that too.
        "runtime_metric_service_port": str(8431 + local),
    }


@pytest.mark.slow
def test_every_process_of_every_slice_is_what_the_plan_means() -> None:
    questions, wanted = [], []
    for row in SLICES:
        made = planner.plan(Request(runtime="pjrt"), hosts_of(row))
        for task, env in enumerate(environments(made)):
            tpu = {k: v for k, v in env.items() if k.startswith(("TPU_", "CLOUD_TPU_"))}
            questions.append({"env": {**tpu, "TPU_ACCELERATOR_TYPE": row["type"]}})
            wanted.append((f"{row['type']} task {task}", expected(row, env, task)))
    assert len(questions) == sum(
        row["hosts"] * row["chips_per_host"] * (2 if row["generation"] == "7x" else 1)
        for row in SLICES
    )
    for (name, meant), found in zip(wanted, ask(questions), strict=True):
        assert {key: found.get(key) for key in meant} == meant, name


def test_every_slice_is_laid_out_by_the_library_as_by_the_plan() -> None:
    questions = []
    for row in SLICES:
        name = f"{NAMES.get(row['generation'], row['generation'])}:{row['topology']}"
        chips = [int(n) for n in row["chip_bounds"].split(",")]
        # v4 has two devices per chip unless this option fuses the cores.
        options = {"chip_config_name": "megacore"} if row["generation"] == "v4" else {}
        questions.append({"slice": name, "chips": chips, "options": options})
    for row, found in zip(SLICES, ask(questions), strict=True):
        made = planner.plan(Request(runtime="pjrt"), hosts_of(row))
        devices = [len(host.replicas) for host in made.hosts]
        assert found == {
            "devices": sum(devices),
            "hosts": len(devices),
            "per_host": sorted(devices),
        }, row["type"]


@pytest.mark.parametrize(
    ("request_", "chips", "meant"),
    [
        # n isolated jobs on a host, two chips of a host, half a host, one host of a larger slice.
        (Request(runtime="pjrt", devices=(5,)), 8, {"devs": ["5"], "host": "1,1,1"}),
        (Request(runtime="jax", devices=(2, 3)), 8, {"devs": ["2", "3"], "host": "1,2,1"}),
        (Request(runtime="pjrt", nprocs=4), 8, {"devs": list("0123"), "host": "2,2,1"}),
        (Request(runtime="jax", nprocs=1), 4, {"devs": [None], "host": "1,1,1", "chip": "2,2,1"}),
        (Request(runtime="jax", nprocs=1), 8, {"devs": [None], "host": "1,1,1", "chip": "2,4,1"}),
    ],
)
def test_parts_of_a_host(request_: Request, chips: int, meant: dict[str, Any]) -> None:
    facts = HostFacts(tpu={"generation": "v5e", "chips": chips}, frameworks=FRAMEWORKS)
    made = planner.plan(request_, facts)
    questions = [
        {"env": {k: v for k, v in env.items() if k.startswith(("TPU_", "CLOUD_TPU_"))}}
        for env in environments(made)
    ]
    found = ask(questions)
    assert [answer.get("deepsea_hal_included_devs") for answer in found] == meant["devs"]
    for answer in found:
        assert answer["deepsea_host_bounds"] == meant["host"]
        assert answer["deepsea_chips_per_host_bounds"] == meant.get("chip", "1,1,1")


def test_the_library_reads_a_file_of_addresses_before_the_variable(tmp_path: Path) -> None:
    """The reason why an inherited file is dropped, and why a long list can be in one."""
    facts = HostFacts(tpu={"generation": "v5e", "chips": 4}, frameworks=FRAMEWORKS)
    env = environments(planner.plan(Request(runtime="pjrt"), facts))[0]
    tpu = {k: v for k, v in env.items() if k.startswith(("TPU_", "CLOUD_TPU_"))}
    other, long = tmp_path / "other", tmp_path / "long"
    other.write_text("a:1,b:2,c:3,d:4")
    # The library finds its own port in the list, here at the end of 200 KB.
    long.write_text(",".join([*(f"10.0.0.{i % 250}:8476" for i in range(15_000)), "me:9999"]))
    without = {k: v for k, v in tpu.items() if k != "TPU_PROCESS_ADDRESSES"}
    questions: list[dict[str, str]] = [
        {**tpu, "TPU_PROCESS_ADDRESSES_PATH": str(other)},
        {**without, "TPU_PROCESS_PORT": "9999", "TPU_PROCESS_ADDRESSES_PATH": str(long)},
        {**without, "TPU_PROCESS_PORT": "9998", "TPU_PROCESS_ADDRESSES_PATH": str(long)},
        {**tpu, "CLOUD_TPU_SLICE_BUILDER_WORKER_IPS": "a:1,b:2,c:3,d:4"},
    ]
    overruled, read, unread, unused = ask([{"env": each} for each in questions])
    assert overruled["deepsea_slice_builder_worker_addresses"] == "a:1,b:2,c:3,d:4"
    port = "runtime_metric_service_port"
    assert port in read
    assert port not in unread
    name = "deepsea_slice_builder_worker_addresses"
    assert unused[name] == tpu["TPU_PROCESS_ADDRESSES"]


def test_malformed_bounds_end_the_process_inside_the_library() -> None:
    """The reason why they are refused before anything starts."""
    assert "failed" in ask([{"env": {"TPU_PROCESS_BOUNDS": "2x2", "TPU_VISIBLE_CHIPS": "0"}}])[0]
