"""Hosts that the user counts without saying which is which: TPUs and schedulers know, or none."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from tests.plans.test_plan_hosts import MPI, SLURM, chips
from xmp._commands import _hosts
from xmp._plan import planner
from xmp._plan.clusters import placement
from xmp._plan.clusters.manual import by_hand
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, HostsByHand, JobPlan, Request

WORKER = {"TPU_WORKER_HOSTNAMES": "a,b,c", "TPU_WORKER_ID": "2"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "2"}


def world(hosts: int) -> HostsByHand:
    addresses = ("10.0.0.9", *[""] * (hosts - 1))
    return HostsByHand(-1, addresses, 29400, "--nnodes --rdzv-endpoint", "77")


def plan(env: dict[str, str], hosts: int = 3) -> JobPlan:
    facts = HostFacts(env=env, address="10.0.0.50", hostname="n10", cpus=(0, 1))
    return planner.plan(Request(runtime="cpu", nprocs=1, world=world(hosts)), facts)


@pytest.mark.parametrize(
    ("env", "hosts", "index"),
    [
        ({}, 3, None),
        (SLURM, 3, 2),
        (MPI, 2, 1),
        (POD, 3, 2),
        (WORKER, 3, None),  # nothing to a runtime on the cores
        ({"SLURM_JOB_ID": "9", "SLURM_JOB_NUM_NODES": "3"}, 3, None),  # no step: no index
    ],
)
def test_who_knows_which_host_this_is(env: dict[str, str], hosts: int, index: int | None) -> None:
    meeting = plan(env, hosts).meeting
    assert meeting is not None
    assert (meeting.open, meeting.index) == (index is None, index or 0)
    assert (meeting.address, meeting.port, meeting.job) == ("10.0.0.9", 30400, "77")


def test_a_scheduler_that_counts_other_hosts_is_named() -> None:
    with pytest.raises(PlanError, match=r"2 hosts, but Slurm .* says host 2 of 3. Give the same"):
        plan(SLURM, 2)


def test_workers_of_a_tpu_have_their_own_order() -> None:
    found = placement([chips(WORKER)], True, None, by_hand(world(3), 4))
    assert (found.open, found.places[0].index, found.coordinator) == (False, 2, "a")
    for env in ({}, {"TPU_WORKER_HOSTNAMES": "a", "TPU_WORKER_ID": "0"}, SLURM):
        with pytest.raises(
            PlanError, match="worker ids, by which they are wired, and this one has"
        ):
            placement([chips(env)], True, None, by_hand(world(3), 4))
    with pytest.raises(PlanError, match=r"2 hosts, but .* says host 2 of 3"):
        placement([chips(WORKER)], True, None, by_hand(world(2), 4))


GIVEN = {
    **dict.fromkeys(("node_rank", "master_addr", "master_port", "rdzv_id", "rdzv_backend")),
    "standalone": False, "nnodes": "2", "rdzv_endpoint": "10.0.0.9:29400",
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "env", "expected"),
    [
        ({}, {}, (-1, "10.0.0.9", 29400, "")),
        ({"rdzv_backend": "c10d", "rdzv_id": "7"}, {}, (-1, "10.0.0.9", 29400, "7")),
        ({"nnodes": "2:2", "rdzv_endpoint": "node-a"}, {}, (-1, "node-a", 0, "")),
        ({"rdzv_endpoint": "[fd00::1]:29400"}, {}, (-1, "fd00::1", 29400, "")),
        ({"node_rank": "1", "rdzv_backend": "static"}, {}, (1, "10.0.0.9", 29400, "")),
        ({}, {"NODE_RANK": "1", "MASTER_ADDR": "x"}, (1, "10.0.0.9", 29400, "")),
        ({"nnodes": "1"}, {}, None),
        ({"rdzv_backend": "static"}, {}, "--rdzv-backend static and --nnodes 2: give --node-rank"),
        ({"rdzv_backend": "etcd-v2"}, {}, "--rdzv-backend etcd-v2 and --nnodes 2: give --node-ra"),
        ({"rdzv_endpoint": "10.0.0.9:0"}, {}, "--rdzv-endpoint 10.0.0.9:0: give HOST:PORT, an a"),
        ({"rdzv_endpoint": "h:70000"}, {}, "--rdzv-endpoint h:70000: give HOST:PORT"),
        ({"node_rank": "2"}, {}, "--node-rank 2 does not fit --nnodes 2"),
        ({"nnodes": "1:2"}, {}, "--nnodes 1:2: xmp joins a fixed number of hosts"),
        ({"rdzv_endpoint": None}, {}, "or, the same on all hosts, --rdzv-endpoint HOST:PORT"),
    ],
)  # fmt: skip
def test_options(given: dict[str, Any], env: dict[str, str], expected: Any) -> None:
    options = argparse.Namespace(**{**GIVEN, **given})
    if isinstance(expected, str):
        with pytest.raises(PlanError) as refused:
            _hosts.by_hand(options, env)
        assert expected in str(refused.value)
        return
    found = _hosts.by_hand(options, env)
    assert (found and (found.index, found.addresses[0], found.port, found.job)) == expected
