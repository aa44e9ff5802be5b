"""``xmp.compat.accelerate`` before a process exists: what it asks for on recorded hosts."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import xmp
import xmp.compat.accelerate as face
from tests.plans.test_plan_golden import facts_of
from tests.support.plans import given
from xmp._plan import planner
from xmp._words.types import HostFacts, JobPlan, Request
from xmp.plugins.accelerate import _devices

MODULES = {"torch": "2.13.0+cu130", "jax": "0.10.2", "torch_tpu": None}


def host(env: dict[str, str] | None = None, vendor: str = "nvidia", *loaded: str) -> HostFacts:
    """A host with eight GPUs of this vendor, or with none, and 16 cores."""
    gpus = {"vendor": vendor, "count": 8} if vendor else {}
    known = {"env": env or {}, "gpus": gpus, "frameworks": MODULES, "loaded": loaded}
    return HostFacts(cpus=tuple(range(16)), **known)


class Launches:
    """What the launchers ask the engine for, on a host with these facts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        monkeypatch.setattr("xmp._calls.host.launch", self._launch)
        monkeypatch.setattr(_devices, "_has_p2p", lambda: True)
        self.calls: list[tuple[Request, Any]] = []

    def _launch(self, request: Request, call: Any, join: bool) -> Any:
        self.calls.append((request, call))
        return SimpleNamespace(_launch=None)

    def __call__(self, facts: HostFacts, *args: Any, **options: Any) -> JobPlan:
        self._patch.setattr("xmp._os.probe.facts", lambda: facts)
        face.notebook_launcher(print, (), *args, **options)
        return planner.plan(self.calls.pop()[0], facts)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return Launches(monkeypatch)


def test_one_replica_on_each_gpu(launches: Launches, capsys: pytest.CaptureFixture[str]) -> None:
    made = launches(host(), 8)
    assert made.runtime == "cuda"
    assert "ACCELERATE_USE_CPU" not in given(made)
    assert capsys.readouterr().out == "Launching training on 8 CUDAs.\n"
    with pytest.raises(xmp.PlanError, match="num_processes=9") as caught:
        launches(host(), 9)
    assert "nprocs" not in str(caught.value)
    with pytest.raises(xmp.PlanError, match="Allowed: 1, 2, 3, 4, 5, 6, 7, 8"):
        launches(host(), None)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("vendor", ["nvidia", ""])
def test_a_loaded_jax_decides_nothing(launches: Launches, vendor: str) -> None:
    made = launches(host(None, vendor, "torch", "jax"), 2)
    assert made.runtime == ("cuda" if vendor else "cpu")
    assert made.world_size == 2


def test_a_runtime_that_accelerate_does_not_know_is_refused(launches: Launches) -> None:
    with pytest.raises(xmp.PlanError, match="XMP_RUNTIME=jax: accelerate cannot train on runtime"):
        launches(host({"XMP_RUNTIME": "jax"}), 2)
    assert launches(host({"XMP_RUNTIME": "cpu"}), 2).runtime == "cpu"


@pytest.mark.parametrize("word", ["1", "yes", "True"])
def test_the_cpu_by_accelerates_variable(launches: Launches, word: str) -> None:
    made = launches(host({"ACCELERATE_USE_CPU": word}), 3)
    assert made.runtime == "cpu"
    assert given(made)["ACCELERATE_USE_CPU"] == "yes"


def test_gpus_that_do_not_reach_each_other(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_devices, "_has_p2p", lambda: False)
    assert given(launches(host(), 2))["NCCL_P2P_DISABLE"] == "1"
    assert "NCCL_P2P_DISABLE" not in given(launches(host(None, ""), 2))


def test_precision_reaches_the_accelerator(launches: Launches) -> None:
    name = "ACCELERATE_MIXED_PRECISION"
    assert given(launches(host(), 2, "FP16"))[name] == "fp16"
    inherited = host({name: "bf16"})
    assert name not in given(launches(inherited, 2))  # it stays as it is


def test_ports_and_hosts(launches: Launches) -> None:
    for options, port in (({}, 0), ({"use_port": 29501}, 29501), ({"use_port": "0"}, 0)):
        [need] = launches(host(), 2, **options).needs
        assert (need.name, need.port) == ("store", port)
    scheduled = host({"NNODES": "4", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.9"})
    assert launches(scheduled, 2).world_size == 2  # num_nodes=1 is this host alone
    second = {"num_nodes": 2, "node_rank": 1}
    for options in ({"master_addr": "10.0.0.1"}, {"rdzv_endpoint": "10.0.0.1:29500"}):
        made = launches(scheduled, 4, **second, **options)
        assert [made.world_size, *(r.rank for r in made.hosts[0].replicas)] == [8, 4, 5, 6, 7]
        assert given(made)["MASTER_ADDR"] == "10.0.0.1"
        assert given(made)["MASTER_PORT"] == "29500"
    assert launches(scheduled, 1, **second, use_port=29600, master_addr="10.0.0.1").world_size == 2


def test_options_of_the_launch(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xmp._os.probe.facts", lambda: host(None, ""))
    template = "{${role_name}${rank}|$local_rank ${other}}"
    face.notebook_launcher(print, (), 1, max_restarts=3, log_line_prefix_template=template)
    [(request, call)] = launches.calls
    assert request.nprocs == 1  # in a process of its own: this one cannot be restarted
    assert call.settings.max_restarts == 3
    assert call.settings.output.prefix.format(rank=1, local_rank=0) == "{default1|0 ${other}}"


def test_all_devices_of_a_notebooks_tpu(
    launches: Launches, capsys: pytest.CaptureFixture[str]
) -> None:
    made = launches(facts_of("kaggle-v5e-8"))
    assert (made.runtime, made.world_size) == ("pjrt", 8)
    assert given(made)["FORK_LAUNCHED"] == "1"
    assert capsys.readouterr().out == "Launching training on 8 TPUs.\n"
    assert launches(facts_of("kaggle-v3-8"), num_processes=8).world_size == 8
    with pytest.raises(xmp.PlanError, match="num_processes=8"):
        launches(facts_of("colab-v5e-1"), 8)


@pytest.mark.parametrize("number", [None, 2])
def test_colab_with_one_gpu_trains_in_the_kernel(
    launches: Launches,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int | None,
) -> None:
    colab = SimpleNamespace(get_ipython=lambda: "<google.colab._shell.Shell object>")
    monkeypatch.setitem(sys.modules, "IPython", colab)  # what accelerate looks for (1.15)
    monkeypatch.setattr("xmp._os.probe.facts", lambda: facts_of("colab-t4"))
    called: list[int] = []
    face.notebook_launcher(called.append, (os.getpid(),), number)
    assert called == [os.getpid()]
    said = "one GPU" if number is None else "one GPU, as always in Colab, and not 2"
    assert capsys.readouterr().out == f"Launching training on {said}.\n"
    assert launches(facts_of("colab-v5e-1")).runtime == "pjrt"


def test_devices_without_a_runtime_are_refused(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_devices, "_mps_is_there", lambda: True)
    with pytest.raises(xmp.PlanError, match="this host are MPS, for which xmp has no runtime"):
        launches(host(None, ""), 2)
    assert launches(host({"ACCELERATE_USE_CPU": "1"}, ""), 2).runtime == "cpu"
    monkeypatch.setattr(_devices, "_mps_is_there", lambda: False)
    monkeypatch.setattr(_devices, "_OTHERS", {"json": "npu"})
    monkeypatch.setattr(_devices, "_device_type", lambda: "npu")
    with pytest.raises(xmp.PlanError, match="this host are NPU"):
        launches(host(None, ""), 2)
    monkeypatch.setattr(_devices, "_device_type", lambda: "cuda")  # what it says elsewhere, too
    assert launches(host(None, ""), 2).runtime == "cpu"


def test_an_accelerator_of_this_process_is_refused(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = {"num_processes": 1}
    state = SimpleNamespace(AcceleratorState=SimpleNamespace(_shared_state=shared))
    monkeypatch.setitem(sys.modules, "accelerate.state", state)
    with pytest.raises(ValueError, match="should only be initialized inside your training"):
        launches(host(), 2)
    shared.clear()
    assert launches(host(), 2).world_size == 2


def test_a_single_process_is_this_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    before = dict(os.environ)
    seen: list[str | None] = []

    def train(name: str) -> None:
        seen.append(os.environ.get(name))
        raise KeyError(name)

    for name, mps in (("ACCELERATE_MIXED_PRECISION", False), ("PYTORCH_ENABLE_MPS_FALLBACK", True)):
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda mps=mps: mps)
        with pytest.raises(KeyError, match=name):  # as it was raised
            face.notebook_launcher(train, [name], 1, "bf16")
    assert seen == ["bf16", "1"]
    assert dict(os.environ) == before
    assert capsys.readouterr().out.splitlines()[1] == "Launching training on MPS."
