"""Hosts of one job that differ: one error that names two of them, before any replica exists."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.tpu_hosts import host as tpu_host
from xmp._hosts.engines import driver
from xmp._hosts.engines.protocol import HostFound
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, JobPlan, Request

TORCH = {"torch": "2.13.0", "jax": "0.10.2"}


def gpus(count: int, **given: Any) -> HostFacts:
    found = {"vendor": "nvidia", "count": count} if count else {}
    return HostFacts(**{"frameworks": TORCH, "loaded": ("torch",), "gpus": found, **given})


def whole(*known: HostFacts, **request: Any) -> JobPlan:
    """The plan of hosts a, b and so on."""
    hosts = [HostFound(n, f"10.0.0.{i}", f) for i, (n, f) in enumerate(zip("abcd", known))]
    group: Any = SimpleNamespace(hosts=hosts)
    return driver._whole(Request(**request), group)


def test_hosts_that_are_alike() -> None:
    plan = whole(gpus(4), gpus(4))
    assert [len(host.replicas) for host in plan.hosts] == [4, 4]
    assert [host.index for host in plan.hosts] == [0, 1]
    assert plan.world_size == 8


def test_different_numbers_of_devices() -> None:
    with pytest.raises(PlanError) as raised:
        whole(gpus(8), gpus(8), gpus(4))
    assert str(raised.value) == (
        "the hosts differ: host a (10.0.0.0) takes 8 replicas (8 visible GPUs, nprocs left out) "
        "and host c (10.0.0.2) 4 (4 visible GPUs, nprocs left out), and all run as many as the "
        "others. Give nprocs=4, or hosts that are alike [XMP-H03]"
    )
    assert whole(gpus(8), gpus(8), gpus(4), nprocs=4).world_size == 12


def test_a_host_with_too_few_devices() -> None:
    with pytest.raises(PlanError, match=r"^host b \(10\.0\.0\.1\): nprocs=8 does not fit this"):
        whole(gpus(8), gpus(4), nprocs=8)


def test_a_mask_on_one_host() -> None:
    with pytest.raises(PlanError, match=r"host a .* takes 4 replicas .* host b .* 1 \(1 visible"):
        whole(gpus(4), gpus(4, env={"CUDA_VISIBLE_DEVICES": "2"}))


def test_different_runtimes() -> None:
    with pytest.raises(PlanError) as raised:
        whole(gpus(2), gpus(0))
    text = str(raised.value)
    assert text.startswith("the hosts differ: host a (10.0.0.0) would use runtime 'cuda' (")
    assert "and host b (10.0.0.1) 'cpu' (" in text
    assert text.endswith("Pass runtime= with one that all have [XMP-H03]")
    assert whole(gpus(2), gpus(0), runtime="cpu", nprocs=2).world_size == 4


def test_a_runtime_that_one_host_lacks() -> None:
    with pytest.raises(
        PlanError, match=r"^host b \(10\.0\.0\.1\): runtime 'jax' needs the package"
    ):
        whole(gpus(0), gpus(0, frameworks={"torch": "2.13.0", "jax": None}), runtime="jax")


def test_tpu_hosts_that_are_no_slice() -> None:
    env = {"TPU_ACCELERATOR_TYPE": "v5litepod-8"}
    with pytest.raises(PlanError, match="Name the hosts of the whole slice"):
        whole(*(tpu_host("v5e", 8, env=env) for _ in range(2)), runtime="jax")


def test_a_host_without_a_name() -> None:
    hosts = [HostFound(f"10.0.0.{i}", f"10.0.0.{i}", gpus(2 - i)) for i in range(2)]
    group: Any = SimpleNamespace(hosts=hosts)
    with pytest.raises(PlanError, match=r"host 10\.0\.0\.0 takes 2 .* host 10\.0\.0\.1 1 \("):
        driver._whole(Request(), group)


def test_a_number_that_the_request_cannot_have_names_the_first_host() -> None:
    with pytest.raises(PlanError, match=r"^host a \(10\.0\.0\.0\): nprocs=0 is too small"):
        whole(gpus(0), gpus(0), nprocs=0)
