"""What the ``ray`` engine asks of a cluster, and what it says the cluster lacks: no Ray here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from xmp._hosts.engines.missing import Missing
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, Request
from xmp.plugins.ray import shortage, slices
from xmp.plugins.ray.cluster import ClusterHost
from xmp.plugins.ray.host_faults import advice
from xmp.plugins.ray.placement import Nodes, Wanted, checked, wanted
from xmp.plugins.ray.slices import TpuSlice, in_worker_order, intact, names_of_workers


def node(
    index: int, free: dict[str, float] | None = None, labels: Any = None, **resources: float
) -> ClusterHost:
    total = {"memory": 1e9, **resources}
    address = f"10.0.0.{index}"
    return ClusterHost(f"{index:02x}", f"n{index}", address, total, labels or {}, free or total)


def worker(index: int, of: str = "a", topology: str = "4x4", **free: float) -> ClusterHost:
    labels = {
        slices.NAME: of, slices.WORKER: str(index), slices.TYPE: "v6e-16",
        slices.TOPOLOGY: topology,
    }  # fmt: skip
    return node(index, labels=labels, free=free, CPU=8, TPU=4)


def asked(hosts: Any, cluster: list[ClusterHost], **request: Any) -> list[dict[str, float]]:
    return wanted(checked(hosts), Request(**request), cluster).parts


V6E = TpuSlice(slices.generation_named("v6e") or pytest.fail("v6e"), "4x4")


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (3, 3),
        (["b" * 56, "a" * 56], Nodes(("b" * 56, "a" * 56))),
        (("b",), Nodes(("b",))),
        ([" AB ", "cd"], Nodes(("ab", "cd"))),
        ("v6e:4x4", V6E),
        (" V6E:4X4 ", V6E),
    ],
)
def test_hosts_that_can_be(hosts: object, expected: object) -> None:
    assert checked(hosts) == expected


PLANS: list[tuple[object, str]] = [
    (0, "hosts=0: give a whole number from 1 up, a list of node ids, or a TPU slice"),
    ([], r"hosts=\[\] names no node"),
    (["a", "b", "A"], r"hosts= has \['a'\] more than once"),
    ([f"{n:x}" for n in range(4097)], "hosts= names 4097 nodes; a launch takes 4096 at most"),
    (10**6, "hosts=1000000: a launch takes 4096 hosts at most. Give fewer"),
    ("x" * 10_000, r"hosts='x{37,38}\.\.\.x{38}' is no TPU slice"),
    ("4", r"hosts='4' is no TPU slice\. Allowed: a whole number .* \"v6e:4x4\""),
    ("", "is no TPU slice"),
    ("v9:4x4", "no TPU generation is called 'v9'. Allowed: v2, v3, v4, v5p, v5e, v6e, 7x"),
    ("v6e:", "'' is no topology of v6e. Allowed: 2 sides"),
    ("v6e:16", "'16' is no topology"),
    ("v6e:4x4x4", "'4x4x4' is no topology of v6e. Allowed: 2 sides in chips, as in \"v6e:4x4\""),
    ("v4:4x4", "'4x4' is no topology of v4. Allowed: 3 sides in chips, as in \"v4:2x2x4\""),
    ("v6e:0x4", "is no topology"),
    ("v6e:4x-4", "is no topology"),
    ("v6e:3x4", "hosts of 2x2 chips cannot form a slice of 3x4"),
]

TYPES: list[tuple[object, str]] = [
    (2.0, "hosts must be a whole number from 1 up, a list of node ids, .* not float: 2.0"),
    (True, "not bool: True"),
    ({"a"}, "not set"),
    ([1, 2], r"hosts=\[1, 2\]: a node id is a str in hexadecimal, not int"),
    (b"v6e:4x4", "not bytes"),
]


@pytest.mark.parametrize(("hosts", "text"), [*PLANS, *TYPES], ids=str)
def test_hosts_that_cannot_be(hosts: object, text: str) -> None:
    kind = TypeError if (hosts, text) in TYPES else PlanError
    with pytest.raises(kind, match=text):
        checked(hosts)


def test_nodes_that_the_cluster_does_not_have() -> None:
    with pytest.raises(PlanError) as raised:
        asked(["01", "07"], [node(1, CPU=2), node(2, CPU=2)])
    assert str(raised.value) == (
        "hosts= has '07': the Ray cluster has no such living node. Allowed: 01 (n1 (10.0.0.1)), "
        "02 (n2 (10.0.0.2)). `ray.nodes()` lists them as NodeID [XMP-H05]"
    )


CPUS = [node(1, CPU=2), node(2, CPU=8)]
GPUS = [node(1, CPU=0), node(2, CPU=8, GPU=4), node(3, CPU=8, GPU=4)]


@pytest.mark.parametrize(
    ("cluster", "hosts", "request_", "expected"),
    [
        (CPUS, 2, {"nprocs": 2}, {"CPU": 2}),
        (CPUS, 2, {"nprocs": 16}, {"CPU": 2}),  # of a small host no more than it has
        (CPUS, 1, {"nprocs": 16}, {"CPU": 8}),
        (CPUS, 5, {"nprocs": 16}, {"CPU": 2}),
        (CPUS, 2, {}, {"CPU": 2}),
        (CPUS, 2, {"runtime": "jax"}, {"CPU": 1}),
        ([node(1, CPU=0)], 1, {"nprocs": 4}, {"memory": 1}),
        (GPUS, 2, {}, {"GPU": 4, "CPU": 4}),
        (GPUS, 2, {"nprocs": 2}, {"GPU": 2, "CPU": 2}),
        (GPUS, 2, {"nprocs": 6}, {"GPU": 4, "CPU": 6}),  # the planner says what fits
        (GPUS, 2, {"nprocs": 6, "runtime": "cuda"}, {"GPU": 6, "CPU": 6}),
        (GPUS, 2, {"nprocs": 6, "runtime": "cpu"}, {"CPU": 6}),
        (GPUS, 2, {"devices": (2, 3)}, {"GPU": 4, "CPU": 2}),  # positions among the host's own
        (GPUS, 3, {"nprocs": 2}, {"memory": 1}),  # one has neither: the facts decide
        (CPUS, 1, {"runtime": "cuda"}, {"GPU": 1, "CPU": 1}),
        ([worker(0), worker(1)], 2, {}, {"TPU": 4, "CPU": 4}),
        ([worker(0), worker(1)], 2, {"devices": (0,)}, {"TPU": 4, "CPU": 1}),
        ([worker(0), worker(1)], 2, {"runtime": "cpu", "nprocs": 3}, {"CPU": 3}),
        ([node(1, CPU=9, neuron_cores=8)], 1, {"nprocs": 2}, {"neuron_cores": 8, "CPU": 2}),
    ],
)
def test_what_each_host_is_asked_for(
    cluster: list[ClusterHost], hosts: int, request_: dict[str, Any], expected: dict[str, float]
) -> None:
    assert asked(hosts, cluster, **request_) == [expected] * hosts


def test_launches_that_can_use_the_same_agents() -> None:
    def key(hosts: Any = 2, cluster: list[ClusterHost] = GPUS, **request: Any) -> object:
        return wanted(checked(hosts), Request(**request), cluster).key

    assert key(nprocs=1, runtime="cpu") == key(nprocs=4, runtime="cpu") == key(runtime="fake")
    assert key(cluster=CPUS, nprocs=1) == key(cluster=CPUS, nprocs=2)
    # An actor keeps the GPUs that Ray has given it.
    assert len({key(nprocs=1), key(nprocs=2), key(nprocs=1, runtime="cpu")}) == 3
    assert len({key(1), key(2), key(["01", "02"]), key("v6e:4x4"), key("v6e:2x8")}) == 5


def test_nodes_are_asked_for_what_each_has() -> None:
    assert asked(["03", "01"], GPUS, nprocs=2) == [{"GPU": 2, "CPU": 2}, {"memory": 1}]
    assert asked(["02", "01"], CPUS, nprocs=4) == [{"CPU": 4}, {"CPU": 2}]


def test_hosts_with_different_devices_need_a_number() -> None:
    cluster = [node(1, CPU=8, GPU=8), node(2, CPU=8, GPU=4), node(3, CPU=8, GPU=8)]
    assert asked(2, cluster) == [{"GPU": 8, "CPU": 8}] * 2  # two are alike
    assert asked(3, cluster, nprocs=4) == [{"GPU": 4, "CPU": 4}] * 3
    with pytest.raises(PlanError) as raised:
        asked(3, cluster)
    assert str(raised.value).startswith(
        "hosts=3 without nprocs=: n1 (10.0.0.1) has 8 GPUs and n2 (10.0.0.2) has 4, and each host "
        "runs as many replicas as the others. Give nprocs=4"
    )


# --- slices -------------------------------------------------------------------------------------


def test_a_slice_is_asked_for_as_a_whole() -> None:
    cluster = [worker(index) for index in (2, 0, 3, 1)]
    assert asked("v6e:4x4", cluster) == [{"TPU": 4, "CPU": 4}] * 4
    assert asked("v6e:4x4", []) == [{"TPU": 4}] * 4  # a cluster that may grow
    big = [node(i, labels=worker(i).labels, CPU=1, TPU=8) for i in range(2)]
    assert asked("v6e:4x4", big) == [{"TPU": 8, "CPU": 1}] * 2
    assert asked("v6e:2x4", []) == [{"TPU": 8}]
    assert asked("v4:2x2x4", []) == [{"TPU": 4}] * 4
    assert asked("v5e:1x1", []) == [{"TPU": 1}]
    for runtime in ("cpu", "cuda"):
        with pytest.raises(PlanError, match=f"hosts='v6e:4x4' with runtime='{runtime}': this"):
            asked("v6e:4x4", cluster, runtime=runtime)


def test_as_many_hosts_as_a_slice_has_are_that_slice() -> None:
    cluster = [worker(index, of) for of in "ab" for index in (3, 1, 2, 0)]
    need = wanted(4, Request(), [node(9, CPU=64), *cluster])
    assert need == wanted(V6E, Request(), cluster)
    assert need.said == "hosts=4"
    assert need.selector == ((slices.TYPE, "v6e-16"), (slices.TOPOLOGY, "4x4"))
    for other in (2, 8):
        assert wanted(other, Request(), cluster).hosts == other
    assert wanted(4, Request(runtime="cpu"), cluster).hosts == 4
    both = [*cluster, *(worker(index, "c", topology="2x8") for index in range(4))]
    assert wanted(4, Request(), both).hosts == 4


def test_hosts_of_several_slices_are_none() -> None:
    cluster = [worker(index, of) for of in "ab" for index in range(4)]
    slices.refuse_mixed(cluster[:4], cluster, "hosts=4")
    slices.refuse_mixed([worker(0, "x"), worker(0, "y")], [worker(0, "x"), worker(0, "y")], "")
    with pytest.raises(PlanError, match="hosts=4: Ray has given hosts of the TPU slices a, b, wh"):
        slices.refuse_mixed(cluster[2:6], cluster, "hosts=4")


@pytest.mark.parametrize(
    ("text", "pod_type"),
    [
        ("v6e:4x4", "v6e-16"),
        ("v5e:2x4", "v5litepod-8"),
        ("v5litepod:4x4", "v5litepod-16"),
        ("v4:2x2x2", "v4-16"),
        ("v5p:2x2x1", "v5p-8"),
        ("tpu7x:2x2x2", "v7x-16"),
    ],
)
def test_the_names_of_slices_in_ray(text: str, pod_type: str) -> None:
    assert slices.parsed(text).pod_type == pod_type


def test_the_free_slice_comes_first() -> None:
    busy = [worker(index, TPU=4 * (index > 0)) for index in range(4)]
    free = [worker(index, "b", TPU=4) for index in range(4)]
    flat = [worker(index, "c", topology="2x8", TPU=4) for index in range(4)]
    part = [worker(index, "d", TPU=4) for index in range(3)]
    assert list(intact(V6E, [*part, *flat, *busy, *free])) == ["b", "a"]


def test_hosts_in_the_order_of_their_workers() -> None:
    def facts(*ids: str) -> list[HostFacts]:
        return [HostFacts(hostname=f"h{i}", env={"TPU_WORKER_ID": i} if i else {}) for i in ids]

    assert in_worker_order(facts("2", "0", "1"), "", must=True) == [1, 2, 0]
    metadata = [HostFacts(metadata={"agent-worker-number": n}) for n in "10"]
    assert in_worker_order(metadata, "", must=True) == [1, 0]
    # A number of hosts that are no slice, or parts of several.
    for ids in (("", ""), ("1", "1"), ("0", "2"), ("0", "x"), ("0", "")):
        assert in_worker_order(facts(*ids), "hosts=2", must=False) == [0, 1]
        with pytest.raises(PlanError, match=r"hosts='v6e:2x4'.* are TPU workers h.*0 to 1, each"):
            in_worker_order(facts(*ids), "hosts='v6e:2x4'", must=True)


def test_the_list_of_workers_where_the_platform_gives_none() -> None:
    cluster = [worker(index) for index in (3, 1, 0, 2)]
    known = [HostFacts(env={"TPU_WORKER_ID": "0"}), HostFacts()]
    names = {"TPU_WORKER_HOSTNAMES": "10.0.0.0,10.0.0.1,10.0.0.2,10.0.0.3"}
    assert names_of_workers(known, cluster[:2], cluster) == names
    listed = HostFacts(env={"TPU_WORKER_HOSTNAMES": "x,y"})
    on_gce = HostFacts(metadata={"worker-network-endpoints": "x,y"})
    assert names_of_workers([listed, *known], cluster, cluster) == {}
    assert names_of_workers([on_gce], cluster, cluster) == {}
    assert names_of_workers(known, [node(1, CPU=1)], cluster) == {}
    assert names_of_workers(known, [worker(0), worker(1, "b")], cluster) == {}
    assert names_of_workers(known, cluster[:1], [*cluster[:1], *cluster[2:]]) == {}, (
        "a worker is not there"
    )


# --- what a cluster lacks -----------------------------------------------------------------------


def short(need: Wanted, cluster: list[ClusterHost]) -> tuple[bool, str]:
    return shortage.can_ever(need, cluster), shortage.missing(need, cluster)


def test_a_cluster_with_too_few_hosts() -> None:
    need = wanted(3, Request(nprocs=1), CPUS)
    assert short(need, CPUS) == (
        False, "the Ray cluster has 2 (n1 (10.0.0.1), n2 (10.0.0.2))"
    )  # fmt: skip


def test_a_cluster_whose_hosts_are_too_small() -> None:
    need = wanted(2, Request(nprocs=6, runtime="cuda"), GPUS)
    expected = "each host is asked for 6 GPU, 6 CPU, which 0 of 3 hosts have"
    assert short(need, GPUS) == (False, expected)


def test_a_cluster_without_the_accelerators() -> None:
    def absent(hosts: Any, cluster: list[ClusterHost], **request: Any) -> str:
        return shortage.absent(wanted(checked(hosts), Request(**request), cluster), cluster)

    for runtime, name in (("cuda", "GPU"), ("torch_tpu", "TPU"), ("neuron", "neuron_cores")):
        assert absent(2, CPUS, runtime=runtime, nprocs=1) == name
    assert absent("v6e:4x4", GPUS) == "TPU"
    assert absent(3, GPUS, runtime="cuda", nprocs=1) == "", "another host with GPUs may come"
    assert absent(2, CPUS, nprocs=1) == absent(2, CPUS, runtime="cpu") == ""
    assert absent(["02"], GPUS, runtime="cuda", nprocs=1) == ""
    assert absent(["02", "01"], GPUS, runtime="cuda", nprocs=1) == "GPU"


def test_the_refusal_says_who_lacks_what_and_what_to_do() -> None:
    need = wanted(2, Request(runtime="cuda", nprocs=1), CPUS)
    assert shortage.refusal(need, CPUS, "GPU") == (
        "hosts=2: the runtime needs a GPU on each host, and Ray counts none on n1 (10.0.0.1), n2 "
        "(10.0.0.2). Start Ray on hosts with GPUs (`ray start --num-gpus` where it finds none), or "
        "give other hosts or another runtime"
    )
    named = wanted(checked(["02", "01"]), Request(runtime="cuda", nprocs=1), GPUS)
    assert "none on n1 (10.0.0.1). Start" in shortage.refusal(named, GPUS, "GPU")


def test_what_the_monitor_of_a_cluster_says() -> None:
    def says(**types: str) -> bytes:
        return json.dumps({"autoscaler_report": {"node_type_mapping": types}}).encode()

    assert not shortage._has_types(says(aa="node_aa", bb="node_bb"))
    assert shortage._has_types(says(aa="ray.head.default", bb="ray.worker.gpu"))
    assert shortage._has_types(None), "it has not said anything yet"


def test_a_cluster_that_others_use() -> None:
    cluster = [node(1, CPU=2, free={"CPU": 0}), node(2, CPU=8)]
    need = wanted(2, Request(nprocs=2), cluster)
    assert short(need, cluster) == (True, "what it asks of them is in use (2 CPU each)")
    assert short(need, CPUS) == (True, "Ray has not given what is free there (2 CPU each)")


def test_named_nodes_that_others_use() -> None:
    cluster = [node(1, CPU=4, free={"CPU": 0}), node(2, CPU=2)]
    need = wanted(checked(["01", "02"]), Request(nprocs=4), cluster)
    assert short(need, cluster) == (True, "what it asks of them is in use (4 CPU; 2 CPU)")


def test_a_cluster_without_the_slice() -> None:
    need = wanted(V6E, Request(), GPUS)
    expected = "the Ray cluster has 0 of the slice's 4 hosts; it has no TPU host"
    assert short(need, GPUS) == (False, expected)
    other = [worker(0, topology="2x8"), worker(1)]
    expected = "the Ray cluster has 1 of the slice's 4 hosts; its TPU hosts are of v6e-16"
    assert short(need, other) == (False, expected)


def test_a_large_cluster_is_not_listed_whole() -> None:
    cluster = [node(index, CPU=1) for index in range(99)]
    need = wanted(100, Request(), cluster)
    assert re.search(r"has 99 \(n0 .* and 91 more\)", shortage.missing(need, cluster))


# --- what a host lacks --------------------------------------------------------------------------


def test_each_launcher_is_advised_of_its_own_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "helper_of_mine.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    lacking, package = Missing("helper_of_mine"), Missing("pytest.nothing")
    value = f'{{"working_dir": "{tmp_path}"}}'
    assert f"Give xmp.launch runtime_env={value} (or ray.init, before" in advice(lacking, False)
    assert f"Give xmp run --runtime-env '{value}': Ray copies" in advice(lacking, True)
    line = f"pytest=={pytest.__version__}"
    assert f'Or give xmp.launch runtime_env={{"pip": ["{line}"]}}' in advice(package, False)
    assert f"""Or give xmp run --runtime-env '{{"pip": ["{line}"]}}'""" in advice(package, True)


@pytest.mark.parametrize("origin", [None, "copied", '{"url": "file:///home/me/ours"}'])
def test_only_what_is_from_an_index_is_advised_of_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: str | None
) -> None:
    site = tmp_path / "site-packages"
    (site / "ours").mkdir(parents=True)
    (site / "ours/__init__.py").touch()
    if origin != "copied":
        info = site / "ours_distribution-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: ours-distribution\nVersion: 1.2\n"
        )
        (info / "top_level.txt").write_text("ours\n")
        if origin:
            (info / "direct_url.json").write_text(origin)
    monkeypatch.syspath_prepend(site)
    text = advice(Missing("ours.part"), False)
    assert ("pip install ours-distribution==1.2" in text) is (origin is None)
    assert text.endswith("Install it there as here") is (origin is not None)
