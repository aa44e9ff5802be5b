"""torch_xla's own ``configure_topology`` and our plan agree on the same host.

Where its behaviour is a defect, the difference is a row of ``DIFFERENCES``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xmp._plan import planner
from xmp._words.types import HostFacts, Request

pytestmark = pytest.mark.xla

SLICES = json.loads((Path(__file__).parent.parent / "plans" / "slices.json").read_text())
COMPARED = (
    "TPU_CHIPS_PER_PROCESS_BOUNDS",
    "TPU_PROCESS_BOUNDS",
    "CLOUD_TPU_TASK_ID",
    "TPU_PROCESS_ADDRESSES",
    "TPU_PROCESS_PORT",
    "TPU_VISIBLE_CHIPS",
)
DIFFERENCES = {
    # Four-part process bounds with three-part chip bounds: libtpu wants both in cores.
    ("7x", "TPU_CHIPS_PER_PROCESS_BOUNDS"): ("1,1,1", "1,1,1,1"),
}


def workers(row: dict[str, Any]) -> list[str]:
    return [f"10.164.0.{i + 2}" for i in range(row["hosts"])]


def by_environment(row: dict[str, Any], worker: int) -> HostFacts:
    """A host described by variables, as on GKE."""
    env = {
        "TPU_SKIP_MDS_QUERY": "true",
        "TPU_ACCELERATOR_TYPE": row["type"],
        "TPU_HOST_BOUNDS": row["host_bounds"],
        "TPU_CHIPS_PER_HOST_BOUNDS": row["chip_bounds"],
        "TPU_WORKER_ID": str(worker),
        "TPU_WORKER_HOSTNAMES": ",".join(workers(row)),
    }
    return host(row, worker, env=env)


def by_metadata(row: dict[str, Any], worker: int) -> HostFacts:
    """A host described by the metadata server, as on Compute Engine."""
    described = {
        "ACCELERATOR_TYPE": row["type"],
        "TPU_PROCESS_BOUNDS": row["host_bounds"],
        "TPU_CHIPS_PER_PROCESS_BOUNDS": row["chip_bounds"],
        "WORKER_ID": str(worker),
    }
    if row["generation"] in ("v2", "v3"):
        del described["TPU_PROCESS_BOUNDS"], described["TPU_CHIPS_PER_PROCESS_BOUNDS"]
    names = workers(row)
    metadata = {
        "accelerator-type": row["type"],
        "agent-worker-number": str(worker),
        "worker-network-endpoints": ",".join(f"w-{i}:{i}00:{n}" for i, n in enumerate(names)),
        "tpu-env": "\n".join(f"{name}: '{value}'" for name, value in described.items()),
    }
    return host(row, worker, metadata=metadata)


def host(row: dict[str, Any], worker: int, **given: Any) -> HostFacts:
    return HostFacts(
        address=workers(row)[worker],
        tpu={"generation": row["generation"], "chips": row["chips_per_host"]},
        frameworks={"torch": "2.9.1+cpu", "torch_xla": "2.9.0"},
        **given,
    )


@pytest.fixture
def clean() -> Iterator[None]:
    saved = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(saved)


def theirs(facts: HostFacts, local: int, count: int, monkeypatch: pytest.MonkeyPatch) -> dict:
    from torch_xla._internal import tpu

    for name in [n for n in os.environ if n.startswith(("TPU_", "CLOUD_TPU_", "PJRT_"))]:
        del os.environ[name]
    os.environ.update(facts.env)
    monkeypatch.setattr(tpu, "_get_metadata", lambda key: facts.metadata[key])
    tpu.configure_topology(local, count)
    return {name: os.environ.get(name) for name in COMPARED}


@pytest.mark.parametrize("described", [by_environment, by_metadata])
@pytest.mark.parametrize("row", SLICES, ids=lambda row: f"{row['type']}-{row['hosts']}")
def test_the_same_topology(
    row: dict[str, Any], described: Any, monkeypatch: pytest.MonkeyPatch, clean: None
) -> None:
    for worker in range(row["hosts"]):
        facts = described(row, worker)
        made = planner.plan(Request(runtime="pjrt"), facts)
        processes = {r.process: dict(r.set) for r in made.hosts[0].replicas}
        for local, ours in processes.items():
            expected = theirs(facts, local, len(processes), monkeypatch)
            for name in COMPARED:
                pair = (expected[name], ours[name])
                known = DIFFERENCES.get((row["generation"], name))
                assert pair == known or (known is None and pair[0] == pair[1]), (name, worker)


@pytest.mark.parametrize("inherited", [None, "", "false", "1"])
def test_it_finds_its_generation_on_an_undescribed_host(
    inherited: str | None, monkeypatch: pytest.MonkeyPatch, clean: None
) -> None:
    """Its import needs the generation, which only a type or a metadata server gives."""
    from torch_xla._internal import tpu

    env = {} if inherited is None else {"TPU_SKIP_MDS_QUERY": inherited}
    facts = HostFacts(
        env=env,
        tpu={"generation": "v5e", "chips": 8},
        frameworks={"torch": "2.9.1", "torch_xla": "2.9.0"},
    )
    replica = planner.plan(Request(runtime="pjrt"), facts).hosts[0].replicas[3]
    os.environ.update(env)
    for name in replica.unset:
        os.environ.pop(name, None)
    os.environ.update(dict(replica.set))
    monkeypatch.setattr(tpu, "_get_metadata", lambda key: pytest.fail(f"asked for {key}"))
    assert tpu.version() == 5


def test_one_process(clean: None) -> None:
    from torch_xla._internal import tpu

    tpu.configure_one_chip_topology()
    facts = HostFacts(
        tpu={"generation": "v4", "chips": 4}, frameworks={"torch": "2.9.1", "torch_xla": "2.9.0"}
    )
    ours = dict(planner.plan(Request(runtime="pjrt", nprocs=1), facts).hosts[0].replicas[0].set)
    for name in ("TPU_VISIBLE_CHIPS", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_BOUNDS"):
        assert os.environ[name] == ours[name]


def test_a_replica_has_the_flags_of_a_fresh_process(tmp_path: Path) -> None:
    """``import torch_xla`` writes on this host what the plan sets."""
    import subprocess
    import sys

    program = (
        "import os, json; before = dict(os.environ); import torch_xla\n"
        "print(json.dumps({k: v for k, v in os.environ.items() if before.get(k) != v}))"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_", "TF_", "GRPC_"))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**env, "PJRT_DEVICE": "CPU"},
    )
    written = json.loads(done.stdout.splitlines()[-1])
    facts = HostFacts(
        env={"PJRT_DEVICE": "CPU"}, frameworks={"torch": "2.9.1", "torch_xla": "2.9.0"}
    )
    ours = dict(planner.plan(Request(runtime="pjrt"), facts).hosts[0].replicas[0].set)
    written.pop("PTXLA_TPU_LIBRARY_PATH", None)  # the path of libtpu.so, the same in every process
    assert {name: ours.get(name) for name in written} == {
        name: " ".join(value.split()) for name, value in written.items()
    }
