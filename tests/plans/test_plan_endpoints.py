"""The address of each replica, where the plan of its runtime gives it one."""

from __future__ import annotations

import pytest

from tests.support.tpu_hosts import host, plan
from xmp._words.replica_info import ReplicaInfo
from xmp._words.types import HostFacts, JobPlan


def infos(made: JobPlan) -> list[ReplicaInfo]:
    replicas = made.hosts[0].replicas
    size = len(replicas)
    return [
        ReplicaInfo(
            each.rank, each.local_rank, made.world_size, size, device=each.device,
            settings=dict(each.settings),
        )
        for each in replicas
    ]  # fmt: skip


@pytest.mark.parametrize("runtime", ["pjrt", "jax", "torch_tpu"])
def test_each_tpu_process_has_its_own(runtime: str) -> None:
    made = plan(host(), runtime)
    seen = infos(made)
    ports = [need.documented for need in made.needs if need.name.startswith("process.")]
    assert [each.endpoint for each in seen] == [f"localhost:{port}" for port in ports]
    assert {each.endpoints for each in seen} == {tuple(each.endpoint for each in seen)}
    assert [each.device_type for each in seen] == ["tpu"] * 8
    assert [each.device_id for each in seen] == list(range(8))


def test_threads_of_a_process_share_its_own() -> None:
    seen = infos(plan(host("v3", 4)))
    assert len(seen) == len(seen[0].endpoints) == 8
    assert len(set(seen[0].endpoints)) == 4
    assert seen[0].endpoint == seen[1].endpoint != seen[2].endpoint


def test_trainers_of_paddle_have_theirs() -> None:
    seen = infos(plan(HostFacts(frameworks={"paddle": "3.3.0"}), "paddle", nprocs=2))
    assert seen[1].endpoints == ("127.0.0.1:6070", "127.0.0.1:6071")
    assert seen[1].endpoint == "127.0.0.1:6071"


@pytest.mark.parametrize(("runtime", "device"), [("cpu", "cpu"), ("cuda", "cuda"), ("jax", "cpu")])
def test_replicas_that_meet_at_one_store_have_none(runtime: str, device: str) -> None:
    gpus = {"vendor": "nvidia", "count": 2} if runtime == "cuda" else {}
    facts = HostFacts(gpus=gpus, frameworks={"torch": "2.13.0", "jax": "0.10.2"})
    seen = infos(plan(facts, runtime, nprocs=2))
    assert [(each.endpoint, each.endpoints) for each in seen] == [("", ())] * 2
    assert [each.device_type for each in seen] == [device] * 2
    assert seen[1].device_id == (1 if gpus else 0)
    assert seen[1].device_ordinal == 1
    assert seen[1].sampler_kwargs == {"num_replicas": 2, "rank": 1}
