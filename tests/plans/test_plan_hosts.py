"""The hosts of a job: one recorded environment per scheduler, and contradictions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plans.test_launchers import INDEXED as KUBERNETES
from tests.plans.test_launchers import MANUAL
from tests.support.tpu_hosts import host
from xmp._plan import planner
from xmp._plan.clusters import placement
from xmp._plan.clusters._host_texts import expand, host_list, split_port
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, JobPlan, Request, WorldByHand

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "7",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "3",
    "LOCAL_WORLD_SIZE": "1",
    "RANK": "1",
    "WORLD_SIZE": "3",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29400",
}
SLURM = {
    "SLURM_JOB_ID": "9",
    "SLURM_STEP_NODELIST": "n[08-10]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "2",
}
MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
}


def plan(env: dict[str, str], nprocs: int = 2, runtime: str = "cpu", **given: Any) -> JobPlan:
    facts = HostFacts(env=env, address="10.0.0.50", cpus=(0, 1, 2, 3), **given)
    return planner.plan(Request(runtime=runtime, nprocs=nprocs), facts)


def seen(made: JobPlan) -> tuple[int, int, str, str]:
    """This host's index, the world size, and where the first replica meets the others."""
    first = made.hosts[0].replicas[0]
    variables = dict(first.set)
    where = variables["MASTER_ADDR"], variables["MASTER_PORT"]
    return made.hosts[0].index, made.world_size, *where


@pytest.mark.parametrize(
    ("env", "hostname", "expected"),
    [
        (TORCHRUN, "node-b", (1, 6, "node-a", "29401")),
        (MANUAL, "b", (1, 4, "10.0.0.9", "2222")),
        ({**MANUAL, "MASTER_PORT": ""}, "b", (1, 4, "10.0.0.9", "29500")),
        (SLURM, "n10", (2, 6, "n08", "29500")),
        ({**SLURM, "MASTER_PORT": "1234"}, "n10", (2, 6, "n08", "1234")),
        (MPI, "b", (1, 4, "10.96.0.1", "29500")),
        ({**MPI, "MASTER_ADDR": "first"}, "b", (1, 4, "first", "29500")),
        (KUBERNETES, "train-3", (3, 8, "train-0", "29500")),
        (KUBERNETES, "train-3.svc.local", (3, 8, "train-0.svc.local", "29500")),
        ({**KUBERNETES, "MASTER_ADDR": "m"}, "x", (3, 8, "m", "29500")),
        # what was set by hand is meant more than what a scheduler says
        ({**SLURM, **MANUAL}, "n10", (1, 4, "10.0.0.9", "2222")),
        ({**SLURM, "NNODES": "1"}, "n10", (0, 2, "127.0.0.1", "29500")),
    ],
)
def test_placed_hosts(
    env: dict[str, str], hostname: str, expected: tuple[int, int, str, str]
) -> None:
    assert seen(plan(env, hostname=hostname)) == expected


@pytest.mark.parametrize(
    "env",
    [
        {},
        # pods of an Indexed Job without NNODES are a sweep
        {k: v for k, v in KUBERNETES.items() if k != "NNODES"},
        # inside a replica of ours
        {**MANUAL, "XMP_DEVICE": "cpu"},
    ],
)
def test_hosts_of_their_own(env: dict[str, str]) -> None:
    assert seen(plan(env)) == (0, 2, "127.0.0.1", "29500")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"NNODES": "2", "NODE_RANK": "0"}, "NNODES=2 hosts, but MASTER_ADDR is not set"),
        ({**MANUAL, "NODE_RANK": "2"}, r"NODE_RANK=2 does not fit NNODES=2. Allowed: 0 to 1"),
        ({**MANUAL, "NODE_RANK": "one"}, r"NODE_RANK='one' is not a number. Allowed: 0 to 1\. \["),
        ({**MANUAL, "NODE_RANK": "-1"}, r"NODE_RANK='-1' is out of range. Allowed: 0 to 1\. \["),
        ({**MANUAL, "NNODES": "0"}, "^NNODES='0' is out of range. Allowed: 1 to 1048576"),
        ({**MANUAL, "NNODES": "1000000000000"}, "^NNODES='1000000000000' is out of range"),
        ({**MANUAL, "NNODES": "two"}, "^NNODES='two' is not a number. Allowed: 1 to 1048576"),
        ({**MANUAL, "NNODES": "2:4"}, "NNODES='2:4' is a range.*set NNODES to that number"),
        ({"NNODES": "2:2"}, "NNODES='2:2' is a range"),
        (
            {**MANUAL, "MASTER_PORT": "abc"},
            "MASTER_PORT='abc' is not a number. Allowed: 1 to 65535",
        ),
        ({**MANUAL, "MASTER_PORT": "99999"}, "^MASTER_PORT='99999' is out of range"),
        ({**MANUAL, "MASTER_PORT": "-1"}, "^MASTER_PORT='-1' is out of range"),
        ({**MANUAL, "MASTER_ADDR": "255.255.255.255"}, "which no host has to itself"),
        ({**MANUAL, "MASTER_ADDR": "239.1.2.3"}, "host 0 is 239.1.2.3, which no host has"),
        ({**MANUAL, "MASTER_ADDR": "ff02::1"}, "host 0 is ff02::1, which no host has"),
        ({**MANUAL, "MASTER_ADDR": "[FF05::2]"}, "which no host has to itself"),
        ({**SLURM, "SLURM_NODEID": "3"}, "disagree"),
        ({k: v for k, v in MPI.items() if "uri" not in k}, "address of rank 0 is not known"),
        (KUBERNETES, "pod is called 'localhost'"),
        ({**KUBERNETES, "JOB_COMPLETION_INDEX": "4"}, "JOB_COMPLETION_INDEX=4 does not fit"),
    ],
)
def test_hosts_that_cannot_be(env: dict[str, str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(env)


@pytest.mark.parametrize(
    "address", ["223.0.0.1", "240.0.0.1", "ff02", "ff02.internal", "fe80::1", "224.internal"]
)
def test_addresses_of_one_host(address: str) -> None:
    environment = dict(plan({**MANUAL, "MASTER_ADDR": address}).hosts[0].replicas[0].set)
    assert environment["MASTER_ADDR"] == address


def test_only_host_0_holds_the_meeting_places_and_the_ports_are_fixed() -> None:
    first = plan({**MANUAL, "NODE_RANK": "0"})
    held = [("store", "10.0.0.9", 2222), ("carrier", "10.0.0.9", 3222)]
    assert [(n.name, n.address, n.port) for n in first.needs] == held
    assert plan(MANUAL).needs == ()


def test_ranks_go_on_from_host_to_host() -> None:
    made = plan(SLURM, nprocs=4)
    assert [r.rank for r in made.hosts[0].replicas] == [8, 9, 10, 11]
    variables = dict(made.hosts[0].replicas[1].set)
    assert (variables["RANK"], variables["LOCAL_RANK"], variables["NODE_RANK"]) == ("9", "1", "2")
    assert "GLOO_SOCKET_IFNAME" not in variables  # the other hosts are not on loopback


def test_several_known_hosts_in_the_order_given() -> None:
    hosts = [HostFacts(address=f"10.0.0.{i}", cpus=(0, 1)) for i in (5, 3)]
    made = planner.plan(Request(runtime="cpu", nprocs=2), hosts)
    assert [(h.index, h.address) for h in made.hosts] == [(0, "10.0.0.5"), (1, "10.0.0.3")]
    assert made.world_size == 4
    assert [need.address for need in made.needs] == ["10.0.0.5"]
    with pytest.raises(PlanError, match="names no host"):
        planner.plan(Request(), [])
    with pytest.raises(PlanError, match=r"hosts differ: \[1, 2\]"):
        planner.plan(Request(runtime="cpu"), [hosts[0], HostFacts(cpus=(0,))])


def test_gloo_listens_at_the_interface_that_leads_to_host_0() -> None:
    def interface(env: dict[str, str], runtime: str = "cpu", **facts: Any) -> str | None:
        made = plan(env, runtime=runtime, **facts)
        return dict(made.hosts[0].replicas[0].set).get("GLOO_SOCKET_IFNAME")

    assert interface(MANUAL, interface="eth1") == "eth1"
    assert interface(MANUAL) is None
    assert interface({}, interface="eth1") == "lo"
    assert interface({**MANUAL, "MASTER_ADDR": "127.0.0.2"}, interface="eth1") == "lo"
    own = {**MANUAL, "GLOO_SOCKET_IFNAME": "ib0"}
    assert interface(own, interface="eth1") is None, "the user's own stays"
    assert "GLOO_SOCKET_IFNAME" not in plan(own).hosts[0].replicas[0].unset


def test_hosts_that_are_one_machine_stay_on_loopback() -> None:
    hosts = [HostFacts(address=f"127.0.0.{i}", cpus=(0, 1)) for i in (2, 3)]
    made = planner.plan(Request(runtime="cpu", nprocs=2), hosts)
    assert dict(made.hosts[1].replicas[0].set)["GLOO_SOCKET_IFNAME"] == "lo"
    assert made.needs[0].address == "127.0.0.2"


def test_hosts_named_in_a_launcher_call() -> None:
    def by_hand(env: dict[str, str], *world: Any, nprocs: int | None = 2) -> JobPlan:
        request = Request(runtime="cpu", nprocs=nprocs, world=WorldByHand(*world))
        return planner.plan(request, HostFacts(cpus=(0, 1), env=env))

    # They count more than variables, whose job they are not.
    for env in ({}, TORCHRUN, MANUAL, SLURM):
        assert seen(by_hand(env, 4, 8, "m", 77)) == (2, 8, "m", "77")
        assert seen(by_hand(env, 4, 8, "m", nprocs=None)) == (2, 8, "m", "29500")
        assert seen(by_hand(env, 0, 2)) == (0, 2, "127.0.0.1", "29500")
    for start, world in ((1, 8), (8, 8), (0, 7)):
        with pytest.raises(PlanError, match=f"rank_start={start} and world_size={world}"):
            by_hand({}, start, world, "m")
    with pytest.raises(PlanError, match="is 4 hosts, but master_ip is not given"):
        by_hand({}, 0, 8)
    with pytest.raises(PlanError, match="address of host 0 is localhost, which is each host"):
        by_hand({}, 0, 8, "localhost")


def test_hosts_named_in_a_call_are_those_of_the_runtimes_own_variables() -> None:
    request = Request(runtime="pjrt", world=WorldByHand(0, 16, "10.0.0.9"))
    with pytest.raises(PlanError, match="says host 0 of 2, but the TPU runtime says worker 0 of 1"):
        planner.plan(request, host())


def test_jax_coordinators_of_ipv6_hosts_have_brackets() -> None:
    made = plan({**MANUAL, "MASTER_ADDR": "fd00::9"}, runtime="jax")
    variables = dict(made.hosts[0].replicas[0].set)
    assert variables["JAX_COORDINATOR_ADDRESS"] == "[fd00::9]:2222"


def test_only_on_several_hosts_jaxs_gloo_leaves_loopback() -> None:
    assert not any("gloo" in note for note in plan({}, runtime="jax").notes)
    assert any("gloo" in note for note in plan(MANUAL, runtime="jax").notes)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,12],login-1", ["n08", "n09", "n10", "n12", "login-1"]),
        ("r[1-2]n[3-4]-ib", ["r1n3-ib", "r1n4-ib", "r2n3-ib", "r2n4-ib"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
    ],
)
def test_slurm_node_lists(text: str, names: list[str]) -> None:
    assert list(expand(text)) == names


@pytest.mark.parametrize("text", ["n[1-2", "n[1-2,4", "n1-2]", "n[1-[2]]", "n[]", "n[a-b]", "a,,b"])
def test_a_slurm_node_list_that_is_cut_off(text: str) -> None:
    with pytest.raises(PlanError, match=r"SLURM_STEP_NODELIST: .* is malformed"):
        expand(text, "SLURM_STEP_NODELIST")


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a,b.c-d", ("a", "b.c-d")),
        ("10.0.0.1,[fd00::1],fd00::2", ("10.0.0.1", "[fd00::1]", "fd00::2")),
        ("a:8471:10.0.0.1", ("a:8471:10.0.0.1",)),
        ("WARNING: no hosts were found, set them", None),
        ("", None),
        ("a,,b", None),
    ],
)
def test_lists_of_hosts(text: str, hosts: tuple[str, ...] | None) -> None:
    assert host_list(text) == hosts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a", ("a", 0)),
        ("a:1", ("a", 1)),
        ("[fd00::1]:22", ("fd00::1", 22)),
        ("[fd00::1]", ("fd00::1", 0)),
        ("fd00::1", ("fd00::1", 0)),
    ],
)
def test_hosts_with_and_without_ports(text: str, parts: tuple[str, int]) -> None:
    assert split_port(text) == parts


# --- TPU slices ----------------------------------------------------------------------------------


def chips(env: dict[str, str], **given: Any) -> HostFacts:
    return HostFacts(env=env, tpu={"generation": "v5e", "chips": 4}, **given)


def test_libtpus_triples_and_plain_names() -> None:
    env = {"TPU_WORKER_HOSTNAMES": "a:8471:10.0.0.1,b:8471:10.0.0.2", "TPU_WORKER_ID": "0"}
    assert placement([chips(env)], on_tpu=True).addresses == ("10.0.0.1", "10.0.0.2")
    plain = {"worker-network-endpoints": "a,b,c", "agent-worker-number": "2"}
    found = placement([chips({}, metadata=plain)], on_tpu=True)
    assert (found.addresses, found.places[0].index) == (("a", "b", "c"), 2)
    long = {"worker-network-endpoints": "a:1:fd00::1,b:2:fd00::2", "agent-worker-number": "1"}
    found = placement([chips({}, metadata=long)], on_tpu=True)
    assert found.addresses == ("fd00::1", "fd00::2")


def test_metadata_without_a_worker_number() -> None:
    metadata = {"worker-network-endpoints": "a,b"}
    with pytest.raises(PlanError, match="lists 2 workers, but agent-worker-number=''"):
        placement([chips({}, metadata=metadata)], on_tpu=True)


def test_slices_are_counted_before_workers() -> None:
    env = {
        "TPU_WORKER_HOSTNAMES": "s1-0,s1-1",
        "TPU_WORKER_ID": "1",
        "MEGASCALE_NUM_SLICES": "3",
        "MEGASCALE_SLICE_ID": "1",
        "MEGASCALE_COORDINATOR_ADDRESS": "s0-0:8080",
    }
    found = placement([chips(env)], on_tpu=True)
    assert found.places[0].index == 3
    assert found.addresses == ("s0-0", "", "s1-0", "s1-1", "", "")
    assert found.coordinator == "s0-0"
    with pytest.raises(PlanError, match="MEGASCALE_SLICE_ID=3 does not fit"):
        placement([chips({**env, "MEGASCALE_SLICE_ID": "3"})], on_tpu=True)


@pytest.mark.parametrize("quote", ["'", '"', ""])  # the document is YAML
def test_slices_described_by_the_metadata_server(quote: str) -> None:
    described = {
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
        "MEGASCALE_COORDINATOR_ADDRESS": "10.9.0.1",
    }
    metadata = {
        "worker-network-endpoints": "a:1:10.0.0.1,b:2:10.0.0.2",
        "agent-worker-number": "0",
        "tpu-env": "\n".join(f"{name}: {quote}{value}{quote}" for name, value in described.items()),
    }
    found = placement([chips({}, metadata=metadata)], on_tpu=True)
    assert (found.places[0].index, len(found.addresses)) == (2, 4)


def test_a_slice_does_not_matter_to_a_runtime_on_the_cores() -> None:
    env = {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1"}
    assert planner.plan(Request(runtime="cpu", nprocs=2), chips(env)).world_size == 2
