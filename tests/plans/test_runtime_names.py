"""A runtime by a name that is not one: what was probably meant."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from xmp._plan import planner, runtimes
from xmp._plan.runtimes import _OTHER_NAMES
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, Request


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpu", ["cuda", "rocm", "xpu", "jax"]),
        ("tpu", ["pjrt", "jax", "torch_tpu"]),
        ("TPU", ["pjrt"]),
        ("torch", ["cuda", "cpu", "without runtime= xmp chooses"]),
        ("cuda:0", ["cuda"]),
        ("torch-tpu", ["torch_tpu"]),
        ("CPU", ["cpu"]),
        ("cdua", ["cuda"]),
        ("xla", ["pjrt"]),
        ("nccl", ["backend"]),
    ],
)
def test_an_unknown_runtime_is_refused_with_what_was_probably_meant(
    name: str, meant: list[str]
) -> None:
    here = HostFacts(cpus=(0, 1))
    asked = (here, Request(runtime=name)), (replace(here, env={"XMP_RUNTIME": name}), Request())
    for known, request in asked:
        with pytest.raises(PlanError, match=r"is not known\. You probably meant") as caught:
            planner.plan(request, known)
        guess, _, allowed = str(caught.value).partition("Allowed: ")
        assert [word for word in meant if word not in guess] == []
        assert allowed.startswith(", ".join(sorted({*runtimes.names()} - {"fake"})))
    with pytest.raises(PlanError, match=r"runtime='zebra' is not known. Allowed: cpu, cuda, "):
        planner.plan(Request(runtime="zebra"), here)


@pytest.mark.parametrize("name", ["fak", "fakes", "faker"])
def test_a_typo_does_not_show_the_runtime_of_tests(name: str) -> None:
    with pytest.raises(PlanError) as caught:
        planner.plan(Request(runtime=name), HostFacts(cpus=(0, 1)))
    assert re.findall("fake[^rs]", str(caught.value)) == []


@pytest.mark.parametrize("name", ["Fake", "FAKE ", "fake:0"])
def test_the_runtime_of_tests_is_named_where_it_is_meant(name: str) -> None:
    with pytest.raises(PlanError, match=r'meant "fake"\. Allowed: cpu, cuda, fake, jax, '):
        planner.plan(Request(runtime=name), HostFacts(cpus=(0, 1)))


def test_a_guess_names_only_what_there_is() -> None:
    for guess in _OTHER_NAMES.values():
        assert {*re.findall(r'"(\w+)"', guess)} <= {*runtimes.names()}, guess
