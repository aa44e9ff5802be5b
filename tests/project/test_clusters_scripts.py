"""The files of scripts/clusters: they parse, and what they start runs on two hosts.

What starts there says where it is; ``train.py`` itself runs once, and is taken away and goes on.
The variables are those that the operators set, by the sources that ``xmp/_plan/clusters`` names;
only the address of host 0 is another: 127.0.0.2 in place of a pod's name.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.stage import ROOT, Outcome, Stage
from tests.support.waiting import until
from xmp._plan import planner
from xmp._words.types import HostFacts, Request
from xmp.testing import recorded_facts

FOLDER = ROOT / "scripts" / "clusters"
SECRET = "XMP_JOB_SECRET"
GPUS = {"nvidia.com/gpu": 4}


@dataclass
class Pod:
    """What a manifest starts on each of its hosts."""

    hosts: int
    container: dict[str, Any]
    kind: str
    spec: dict[str, Any]

    @property
    def command(self) -> list[str]:
        command: list[str] = self.container["command"]
        return command

    @property
    def own(self) -> dict[str, str]:
        """The variables whose values the manifest has."""
        return {each["name"]: each["value"] for each in self.container["env"] if "value" in each}

    @property
    def limits(self) -> dict[str, int]:
        found: dict[str, int] = self.container["resources"]["limits"]
        return found


def manifest(name: str) -> dict[str, Any]:
    *_, found = yaml.safe_load_all((FOLDER / name).read_text())
    assert isinstance(found, dict)
    assert re.fullmatch("[a-z]+", found["metadata"]["name"])
    return found


def trainjob() -> Pod:
    found = manifest("trainjob.yaml")
    assert (found["apiVersion"], found["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    trainer = found["spec"]["trainer"]
    [patch] = found["spec"]["runtimePatches"]
    [job] = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]["template"]["spec"]
    [patched] = spec["containers"]
    assert (job["name"], patched["name"]) == ("node", "node")
    container = {**trainer, "resources": trainer["resourcesPerNode"], **patched}
    return Pod(trainer["numNodes"], container, "TrainJob", spec)


def pytorchjob() -> Pod:
    found = manifest("pytorchjob.yaml")
    assert (found["apiVersion"], found["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    parts = found["spec"]["pytorchReplicaSpecs"]
    assert parts["Master"]["replicas"] == 1
    assert parts["Master"]["template"] == parts["Worker"]["template"]
    spec = parts["Worker"]["template"]["spec"]
    [container] = spec["containers"]
    assert container["name"] == "pytorch"
    return Pod(sum(each["replicas"] for each in parts.values()), container, "PyTorchJob", spec)


def indexedjob() -> Pod:
    service, job = yaml.safe_load_all((FOLDER / "indexedjob.yaml").read_text())
    spec = job["spec"]
    assert (spec["completionMode"], spec["parallelism"]) == ("Indexed", spec["completions"])
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    found = Pod(spec["completions"], container, "Job", pod)
    first = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert found.own == {"NNODES": str(found.hosts), "MASTER_ADDR": first}
    return found


def jobset() -> Pod:
    found = manifest("jobset.yaml")
    assert (found["apiVersion"], found["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    [job] = found["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    assert job["replicas"] == 1
    assert (spec["completionMode"], spec["parallelism"]) == ("Indexed", spec["completions"])
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    chips = spec["completions"] * container["resources"]["limits"]["google.com/tpu"]
    x, y = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
    assert int(x) * int(y) == chips
    return Pod(spec["completions"], container, "JobSet", pod)


def variables(pod: Pod, index: int, port: int) -> dict[str, str]:
    """What the operator sets in one of the pods."""
    pet = {
        "PET_NNODES": str(pod.hosts),
        "PET_NODE_RANK": str(index),
        "PET_MASTER_ADDR": "127.0.0.2",
        "PET_MASTER_PORT": str(port),
    }
    first = {"MASTER_ADDR": "127.0.0.2", "MASTER_PORT": str(port)}
    own = {
        "TrainJob": {**pet, "PET_NPROC_PER_NODE": "auto", "JOB_COMPLETION_INDEX": str(index)},
        "PyTorchJob": {**pet, **first, "RANK": str(index), "WORLD_SIZE": str(pod.hosts)},
        # GKE's list of workers counts only where there are chips: here the hosts are set by hand.
        "JobSet": {**first, "NNODES": str(pod.hosts), "NODE_RANK": str(index)}
        | {"JOB_COMPLETION_INDEX": str(index)},
        "Job": {**pod.own, **first, "JOB_COMPLETION_INDEX": str(index)},
    }
    return {"KUBERNETES_SERVICE_HOST": "10.96.0.1", SECRET: "s3cret", **own[pod.kind]}


PODS = (trainjob, pytorchjob, indexedjob, jobset)


@pytest.mark.parametrize("read", PODS)
def test_a_manifest_is_one_of_two_hosts_with_a_secret(read: Any) -> None:
    pod = read()
    assert pod.hosts == 2
    assert pod.limits in (GPUS, {"google.com/tpu": 4})
    [secret] = [each for each in pod.container["env"] if each["name"] == SECRET]
    assert {*secret["valueFrom"]["secretKeyRef"]} == {"name", "key"}
    text = (FOLDER / f"{read.__name__}.yaml").read_text()
    made = f"kubectl create secret generic {secret['valueFrom']['secretKeyRef']['name']} "
    assert f"{made}--from-literal={secret['valueFrom']['secretKeyRef']['key']}=" in text


@pytest.mark.parametrize("read", [trainjob, pytorchjob, indexedjob])
def test_a_pod_with_gpus_has_shared_memory(read: Any) -> None:
    """A container of its own has 64 MiB in /dev/shm: too little for nccl and DataLoader."""
    pod = read()
    assert pod.container["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]
    assert pod.spec["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory"}}]


@pytest.mark.parametrize("read", [trainjob, pytorchjob, indexedjob])
def test_a_pod_has_a_replica_for_each_gpu(read: Any) -> None:
    pod = read()
    frameworks = recorded_facts("kubeflow-trainjob").frameworks
    for index in range(pod.hosts):
        facts = HostFacts(
            env=variables(pod, index, 29500),
            gpus={"vendor": "nvidia", "count": pod.limits["nvidia.com/gpu"]},
            frameworks=frameworks,
        )
        made = planner.plan(Request(), facts)
        assert (made.runtime, made.world_size) == ("cuda", 8)
        assert [each.rank for each in made.hosts[0].replicas] == [*range(4 * index, 4 * index + 4)]


def test_a_pod_of_the_jobset_has_a_replica_for_each_chip() -> None:
    """With the variables of GKE's device plugin and webhook, as gke-v5e-16 has them."""
    pod, recorded = jobset(), recorded_facts("gke-v5e-16")
    own = {
        **recorded.env,
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        "TPU_TOPOLOGY": "2x4",
        "TPU_HOST_BOUNDS": "1,2,1",
        "HOST_BOUNDS": "1,2,1",
        "TPU_WORKER_HOSTNAMES": "digits-workers-0-0.digits,digits-workers-0-1.digits",
    }
    for index in range(pod.hosts):
        env = {**own, "TPU_WORKER_ID": str(index), "JOB_COMPLETION_INDEX": str(index)}
        facts = HostFacts(env=env, tpu=recorded.tpu, frameworks=recorded.frameworks)
        made = planner.plan(Request(runtime="jax"), facts)
        assert (made.hosts[0].index, made.world_size) == (index, 8)
        first = dict(made.hosts[0].replicas[0].set)
        assert first["JAX_COORDINATOR_ADDRESS"] == "digits-workers-0-0.digits:8482"


# --- what they start -----------------------------------------------------------------------------

PLACES = """
    import os, xmp

    def place(rank):
        store = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return [rank, xmp.host_index(), xmp.world_size(), *store]

    if __name__ == "__main__":
        print(list(xmp.spawn(place)), flush=True)
"""


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.2", 0)) as free:
        found: int = free.getsockname()[1]
    return found


@pytest.fixture
def image(stage: Stage) -> Path:
    """The folder in which a container would have the program; it needs no torch on each host."""
    stage.write(PLACES, "train.py")
    return stage.folder


def on_two_cores() -> list[str]:
    """With one replica for each core a host is not to have more than two."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    return ["taskset", "--cpu-list", ",".join(map(str, cores))]


def environment(image: Path, own: dict[str, str]) -> dict[str, str]:
    """Of a container whose ``python`` has xmp; the folder has what stands for other programs."""
    path = os.pathsep.join([str(image), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {"XMP_RUNTIME": "cpu", "PATH": path, **own}


def check(outcomes: list[Outcome], port: int) -> None:
    here = min(2, len(os.sched_getaffinity(0)))
    assert [each.code for each in outcomes] == [0, 0], [each.err for each in outcomes]
    store = ["127.0.0.2", port]
    hosts = [
        [[host * here + local, host, 2 * here, *store] for local in range(here)]
        for host in range(2)
    ]
    assert [each.out for each in outcomes] == [f"{host}\n" for host in hosts]


@pytest.mark.hosts
@pytest.mark.parametrize("read", PODS)
def test_the_command_of_a_manifest_on_two_hosts(
    read: Any, stage: Stage, image: Path, port: int
) -> None:
    pod = read()
    command = [word.replace("/app/", f"{image}/") for word in pod.command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [
        stage.start_command(
            *on_two_cores(),
            *command,
            env=environment(image, variables(pod, index, port)),
            **pipes,
        )
        for index in range(pod.hosts)
    ]
    check([stage.outcome(each, timeout=60) for each in started], port)
    stage.gone()


def by_hand(stage: Stage, image: Path, port: int, **own: str) -> list[subprocess.Popen[str]]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    common = {"NNODES": "2", "MASTER_ADDR": "127.0.0.2", "MASTER_PORT": str(port), **own}
    return [
        stage.start_command(
            *(*on_two_cores(), "python", "train.py"),
            env=environment(image, {**common, "NODE_RANK": str(index)}),
            **pipes,
        )
        for index in range(2)
    ]


@pytest.mark.hosts
def test_a_host_that_is_taken_away_leaves_a_checkpoint(
    stage: Stage, image: Path, port: int
) -> None:
    program = (FOLDER / "train.py").read_text()
    assert "STEPS = 100\n" in program
    stage.write(program.replace("STEPS = 100\n", "STEPS = 1_000_000_000\n"), "train.py")
    hosts = by_hand(stage, image, port, CHECKPOINT="saved.json")
    saved = image / "saved.json"
    until(saved.exists, 60, "a checkpoint")
    hosts[1].send_signal(signal.SIGTERM)  # rank 0, which saves, is on the other host
    ended = [stage.outcome(each, timeout=60) for each in hosts]
    assert [each.code for each in ended] == [0, 0], [each.err for each in ended]
    state = json.loads(saved.read_text())
    assert [each.out.split(" after ")[1] for each in ended] == [f"step {state['step']}\n"] * 2
    # The next job goes on from there.
    steps = state["step"] + 7
    stage.write(program.replace("STEPS = 100\n", f"STEPS = {steps}\n"), "train.py")
    saved.write_text(json.dumps({**state, "weight": 1000.0}))
    again = [
        stage.outcome(each, 60) for each in by_hand(stage, image, port, CHECKPOINT="saved.json")
    ]
    mean = (2 * min(2, len(os.sched_getaffinity(0))) + 1) / 2
    weight = mean + (1000 - mean) * 0.9**7
    assert [each.out.partition(", ")[2] for each in again] == [
        f"weight {weight:.2f} after step {steps}\n"
    ] * 2, [each.err for each in again]
    stage.gone()


GCLOUD = """#!/bin/bash
# Stands for gcloud: runs --command on each of two workers.
[ "$1 $2 $3 $4 $5" = "compute tpus tpu-vm ssh my-tpu" ] || exit 2
[ "$6 $7" = "--zone=us-central2-b --worker=all" ] || exit 3
[[ "$8" == --command=* ]] && [ $# = 8 ] || exit 4
for index in 0 1; do NODE_RANK=$index bash -c "${8#--command=}" & workers="$workers $!"; done
for worker in $workers; do wait $worker || exit 1; done
"""


@pytest.mark.hosts
def test_the_line_for_all_workers_of_a_tpu(stage: Stage, image: Path, port: int) -> None:
    (image / "gcloud").write_text(GCLOUD)
    (image / "gcloud").chmod(0o755)
    variables_by_hand = {"NNODES": "2", "MASTER_ADDR": "127.0.0.2", "MASTER_PORT": str(port)}
    script = stage.start_command(
        *on_two_cores(),
        *(str(FOLDER / "tpu-vm.sh"), "my-tpu", "us-central2-b"),
        env=environment(image, variables_by_hand),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    done = stage.outcome(script, timeout=60)
    lines = done.out.splitlines(keepends=True)
    check([Outcome(done.code, line, done.err, done.seconds) for line in sorted(lines)], port)
    stage.gone()
