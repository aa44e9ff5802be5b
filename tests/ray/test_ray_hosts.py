"""``hosts=`` of the ``ray`` engine on a real cluster: which hosts, what of each, and refusals."""

from __future__ import annotations

import os
import platform
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import xmp
from tests.support.ray_cluster import RayCluster, cluster_of
from tests.support.stage import Stage, slowness
from tests.support.waiting import until

pytestmark = pytest.mark.ray

GPUS = ("--num-gpus=2",)
HERE = platform.node()

COMMON = """
    import os
    import time

    import ray
    import xmp
    from in_script import say

    def left():
        groups = ray.util.placement_group_table().values()
        actors = ray._private.state.actors().values()
        return [each["name"] for each in groups if each["state"] != "REMOVED"] + [
            each["ActorClassName"] for each in actors if each["State"] != "DEAD"
        ]

    def refused(**options):
        begun = time.monotonic()
        try:
            xmp.launch(print, engine="ray", **options)
        except Exception as error:
            return f"{type(error).__name__}: {error}", time.monotonic() - begun
"""

DRIVER = (
    COMMON
    + """
    from tests.support.waiting import until

    def all_is_free():
        # Ray's table of free resources follows later.
        hosts = ray._private.state.available_resources_per_node().values()
        return [host.get("CPU") for host in hosts] == [2, 2]

    def where(rank):
        return [xmp.world_size(), ray_address(), os.environ.get("CUDA_VISIBLE_DEVICES")]

    def ray_address():
        return os.environ["THIS_NODE"]

    def agents(nprocs):
        options = dict(hosts=2, nprocs=nprocs, runtime="cpu", progress=False)
        with xmp.launch(where, engine="ray", join=False, **options) as job:
            job.join()
            return sorted(host.pid for host in job.hosts)

    @ray.remote(num_cpus=2)
    def task():
        return 5

    def between():
        # Two launches of everything that the cluster has, and other work of Ray between them.
        first = agents(2)
        tasks = ray.get([task.remote(), task.remote()], timeout=30)
        return tasks, [first, agents(2), agents(1), agents(3)]

    def on(**options):
        return list(xmp.launch(where, engine="ray", progress=False, **options))

    if __name__ == "__main__":
        ray.init(log_to_driver=False)
        ids = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes()}
        first, second = ids["127.0.0.2"], ids["127.0.0.3"]
        say(ids=[first, second])
        say(
            number=on(hosts=2, nprocs=3, runtime="cpu"),
            order=on(hosts=[second, first], nprocs=1, runtime="cpu"),
            reversed=on(hosts=(first, second), nprocs=1, runtime="cpu"),
            masked=on(hosts=1, nprocs=1),
            masks=on(hosts=[second], nprocs=2),
        )
        say(
            unknown=refused(hosts=[first, "ab" * 28]),
            differ=refused(hosts=[first, second], nprocs=1),
            devices=refused(hosts=[second], devices=[1], runtime="cuda"),
            lacks=refused(hosts=[second, first], nprocs=1, runtime="cuda"),
        )
        xmp.shutdown()
        say(after=left())
        say(between=between())
        xmp.shutdown()
        until(all_is_free, 20)
        say(
            many=refused(hosts=3, runtime="cpu", nprocs=1, start_timeout=1),
            gpus=refused(hosts=2, runtime="cuda", nprocs=1, start_timeout=1),
        )

        @ray.remote(num_cpus=1)
        class Theirs:
            def is_there(self):
                return True

        other = ray.util.placement_group([{"CPU": 1}], name="train")
        ray.get(other.ready())
        actor = Theirs.remote()
        ray.get(actor.is_there.remote())
        say(busy=refused(hosts=2, runtime="cpu", nprocs=2, start_timeout=3))
        ray.kill(actor)
        ray.util.remove_placement_group(other)
        say(left=left())
    """
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """Two nodes of two processors; GPUs that are not there on the second."""
    nodes: list[dict[str, Any]] = [
        {"cpus": 2, "env": {"THIS_NODE": "127.0.0.2", "XMP_RUNTIME": "jax"}},
        {"cpus": 2, "env": {"THIS_NODE": "127.0.0.3"}, "options": GPUS},
    ]
    with cluster_of(tmp_path_factory.mktemp("cluster"), *nodes) as made:
        yield made


@pytest.fixture(scope="module")
def said(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one driver has found; all of it has ended with it."""
    stage = Stage(tmp_path_factory.mktemp("driver"))
    outcome = stage.run(DRIVER, env=cluster.env, timeout=180)
    return {**outcome.said, "err": outcome.err}


def test_a_number_of_hosts(said: dict[str, Any]) -> None:
    addresses = [where for _, where, _ in said["number"]]
    assert len(addresses) == 6  # three on each host of two processors
    assert {*addresses[:3]} | {*addresses[3:]} == {"127.0.0.2", "127.0.0.3"}
    assert {size for size, _, _ in said["number"]} == {6}


def test_nodes_by_their_ids_in_the_order_given(said: dict[str, Any]) -> None:
    assert [where for _, where, _ in said["order"]] == ["127.0.0.3", "127.0.0.2"]
    assert [where for _, where, _ in said["reversed"]] == ["127.0.0.2", "127.0.0.3"]


def test_the_masks_of_gpus_are_kept(said: dict[str, Any]) -> None:
    assert said["masked"] == [[1, "127.0.0.3", "0"]]
    assert said["masks"] == [[2, "127.0.0.3", "0,1"]] * 2


def test_between_two_launches_ray_has_the_processors(said: dict[str, Any]) -> None:
    tasks, agents = said["between"]
    assert tasks == [5, 5]
    assert agents == [agents[0]] * 4, "they stay, also for other numbers of replicas"


def test_a_node_that_is_not_there(said: dict[str, Any]) -> None:
    text, seconds = said["unknown"]
    first, second = said["ids"]
    assert text == (
        f"PlanError: hosts= has '{'ab' * 28}': the Ray cluster has no such living node. Allowed: "
        f"{first} ({HERE} (127.0.0.2)), {second} ({HERE} (127.0.0.3)). `ray.nodes()` lists them as "
        "NodeID [XMP-H05]"
    )
    assert seconds < 10, "it does not wait for the node"


def test_hosts_that_would_use_different_runtimes(said: dict[str, Any]) -> None:
    text, _ = said["differ"]
    assert text.startswith("PlanError: the hosts differ: host ")
    assert "(127.0.0.2) would use runtime 'jax' (XMP_RUNTIME=jax) and host " in text
    assert "(127.0.0.3) 'cpu' (" in text
    assert text.endswith("Pass runtime= with one that all have [XMP-H03]")


def test_devices_are_positions_among_all_of_a_host(said: dict[str, Any]) -> None:
    # The planner sees no GPU; Ray was asked for both, or it would have had to wait.
    assert "devices=[1]: 1 is out of range" in said["devices"][0]


def test_named_nodes_without_gpus(said: dict[str, Any]) -> None:
    text, seconds = said["lacks"]
    assert text.startswith(
        "PlanError: hosts=[2 node ids]: the runtime needs a GPU on each host, and Ray counts none "
        f"on {HERE} (127.0.0.2). Start Ray on hosts with GPUs"
    ), text
    assert seconds < 10, "a node gets no others"


def test_more_hosts_than_the_cluster_has(said: dict[str, Any]) -> None:
    text, seconds = said["many"]
    assert text == (
        "StartError: hosts=3: no hosts within 1 s (start_timeout): the Ray cluster has 2 "
        f"({HERE} (127.0.0.2), {HERE} (127.0.0.3)). Give fewer hosts or replicas, or a longer "
        "start_timeout; `ray status` and `ray list placement-groups` show who holds what "
        "[XMP-H07]"
    )
    assert 1 < seconds < 10
    cluster = f"{HERE} (127.0.0.2), {HERE} (127.0.0.3)"
    warning = f"xmp: hosts=3: the Ray cluster has 2 ({cluster}); xmp waits up to 1 s"
    assert warning in said["err"]


def test_hosts_without_what_is_asked_for(said: dict[str, Any]) -> None:
    text, _ = said["gpus"]
    assert "each host is asked for 1 GPU, 1 CPU, which 1 of 2 hosts have" in text
    assert "hosts=2: each host is asked for 1 GPU" in said["err"]


def test_hosts_that_others_use(said: dict[str, Any]) -> None:
    text, _ = said["busy"]
    assert "within 3 s (start_timeout): what it asks of them is in use (2 CPU each)." in text
    assert "hosts=2: what it asks of them is in use (2 CPU each); xmp waits" in said["err"]


def test_nothing_stays_in_the_cluster(said: dict[str, Any]) -> None:
    assert said["after"] == said["left"] == []


WAITS = (
    COMMON
    + """
    if __name__ == "__main__":
        try:
            xmp.launch(print, engine="ray", hosts=9, nprocs=1, runtime="cpu")
        except KeyboardInterrupt:
            say(at=time.monotonic(), left=left())
            raise
    """
)


def test_ctrl_c_while_hosts_are_awaited(cluster: RayCluster, tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    driver = stage.start(WAITS, env=cluster.env)
    err = tmp_path / "script1.py.err"
    until(lambda: "hosts=9: the Ray cluster has 2" in err.read_text(), 60, err.read_text)
    assert "xmp waits up to 300 s (start_timeout) for hosts" in err.read_text()
    os.kill(driver.pid, signal.SIGINT)
    outcome = stage.outcome(driver, 20)
    assert outcome.code == 1  # with Ray's excepthook any KeyboardInterrupt is (Ray 2.60)
    assert outcome.seconds < 8, "the actors that wait for hosts are not awaited"
    assert outcome.said["left"] == []
    assert "KeyboardInterrupt" in outcome.err
    stage.gone()


SITE = """
import importlib.util
import os
import sys
import time
from importlib.abc import MetaPathFinder


class Other(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "xmp":
            return None
        if os.environ["XMP_THERE"] == "dies":
            os.kill(os.getpid(), 9)
        return importlib.util.spec_from_file_location("xmp", os.environ["XMP_THERE"])


if "XMP_THERE" in os.environ:
    sys.meta_path.insert(0, Other())
if "HANGS" in os.environ:
    while not os.path.exists(os.environ["HANGS"]):
        time.sleep(0.05)
    os._exit(1)
if "SLOW" in os.environ and "xmp._hosts.engines.agent" in " ".join(sys.orig_argv):
    time.sleep(float(os.environ["SLOW"]))
"""

VERSIONS = (
    COMMON
    + """
    import sys

    def there(start_timeout=None, **variables):
        folder = os.environ["SITE"]
        env = {"env_vars": {"PYTHONPATH": folder, **variables}}
        ray.init(log_to_driver=False, runtime_env=env)
        text, _ = refused(hosts=2, nprocs=1, runtime="cpu", start_timeout=start_timeout)
        found = left()
        ray.shutdown()
        return text, found

    def slow():
        folder = os.environ["SITE"]
        ray.init(runtime_env={"env_vars": {"PYTHONPATH": folder, "SLOW": "2.5"}})
        begun = time.monotonic()
        found = list(xmp.launch(abs, engine="ray", hosts=2, nprocs=1, runtime="cpu"))
        seconds = time.monotonic() - begun
        xmp.shutdown()
        ray.shutdown()
        return found, seconds

    if __name__ == "__main__":
        say(slow=slow())
        say(broken=there(XMP_THERE=os.path.join(os.environ["SITE"], "broken.py")))
        say(dies=there(XMP_THERE="dies"))
        end = os.path.join(os.environ["SITE"], "end")
        say(hangs=there(HANGS=end, start_timeout=3))
        open(end, "w").close()
    """
)


def test_hosts_that_cannot_be_used(cluster: RayCluster, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    (site / "broken.py").write_text("import no_such_module\n")
    env = {**cluster.env, "SITE": str(site)}
    outcome = Stage(tmp_path).run(VERSIONS, env=env, timeout=120)
    found = outcome.said
    results, seconds = found.pop("slow")
    assert results == [0, 1]
    assert seconds > 2.5, "the agents were awaited"
    assert [left for _, left in found.values()] == [[]] * 3
    own = xmp.__version__
    broken, dies, hangs = (text for text, _ in found.values())
    name = os.uname().nodename
    assert broken.startswith(
        f'PlanError: engine="ray": host {name} cannot import xmp (ModuleNotFoundError: No module '
        f"named 'no_such_module'), and this process has xmp {own}. Run there, in the source of xmp "
        f"{own}: /"
    ), broken
    assert broken.endswith("-m pip install . (and 1 more host like it) [XMP-H03]")
    assert re.fullmatch(
        rf"StartError: host {HERE} \(127\.0\.0\.[23]\) of the Ray cluster has failed: The actor "
        r"died .*\. See `ray status` for the hosts that live, and launch again \[XMP-H07\]",
        dies,
    ), dies
    assert hangs.startswith(f"StartError: hosts=2: {HERE} (127.0.0.")
    assert hangs.endswith(
        " did not answer within 3 s (start_timeout): Ray has not started a process there, or it "
        "hangs [XMP-H07]"
    )


LOST = (
    COMMON
    + """
    from in_script import never_returns

    def waits(rank, folder):
        open(f"{folder}/in-fn-{rank}", "w").close()
        never_returns()

    if __name__ == "__main__":
        ray.init(log_to_driver=False)
        nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes()}
        hosts = [nodes["127.0.0.2"], nodes["127.0.0.3"]]
        options = dict(nprocs=1, runtime="cpu", progress=False, grace=1)
        job = xmp.launch(
            waits, (os.getcwd(),), hosts=hosts, engine="ray", join=False, **options
        )
        begun = time.monotonic()
        try:
            job.join()
        except xmp.XmpError as error:
            say(lost=[f"{type(error).__name__}: {error}", time.monotonic() - begun])
    """
)


def test_a_raylet_that_nothing_has_waited_for(cluster: RayCluster, stage: Stage) -> None:
    """It is a zombie, which Ray takes as alive; its cluster would give the host up after 13 s.

    This comes last: the cluster has one host less.
    """
    below = psutil.Process(cluster.nodes[1].pid).children(recursive=True)
    (raylet,) = (each for each in below if each.name() == "raylet")
    driver = stage.start(LOST, env=cluster.env)
    stage.in_function(driver, 2)
    parent = raylet.ppid()
    os.kill(parent, signal.SIGSTOP)
    slow = slowness()
    raylet.kill()
    text, seconds = stage.outcome(driver, 60).said["lost"]
    os.kill(parent, signal.SIGCONT)
    assert text.startswith("HostLost: host 1 ")
    assert "was ended, as the raylet of its host has ended" in text
    assert seconds < (5 + 1) * slow
