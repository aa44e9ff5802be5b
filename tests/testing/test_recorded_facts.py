"""``xmp.testing``: facts of hosts that a user does not have, and chips that are not there."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import xmp
import xmp.testing
from tests.support.fresh import in_fresh_interpreter
from xmp.testing import RECORDED, fake_chips, recorded_facts

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_host_has_a_plan(name: str) -> None:
    facts = recorded_facts(name)
    assert isinstance(facts, xmp.HostFacts)
    assert xmp.plan(facts=facts).world_size >= 1


@pytest.mark.parametrize(
    ("name", "runtime", "world"),
    [("kaggle-v5e-8", "pjrt", 8), ("colab-v5e-1", "pjrt", 1), ("kaggle-t4x2", "cuda", 2)],
)
def test_the_hosts_of_notebooks_are_there(name: str, runtime: str, world: int) -> None:
    made = xmp.plan(facts=recorded_facts(name))
    assert (made.runtime, made.world_size) == (runtime, world)


def test_a_request_that_does_not_fit_a_recorded_host_is_refused() -> None:
    with pytest.raises(xmp.PlanError, match="nprocs=8"):
        xmp.plan(8, facts=recorded_facts("colab-v5e-1"))


def test_an_unknown_host_is_refused_with_the_known_ones() -> None:
    with pytest.raises(xmp.PlanError) as caught:
        recorded_facts("kaggle-v5e8")
    said = str(caught.value)
    assert said.startswith("no facts are recorded as 'kaggle-v5e8'. Did you mean 'kaggle-v5e-8'?")
    assert said.endswith(f"Recorded hosts: {', '.join(RECORDED)}. [XMP-P01]")
    with pytest.raises(TypeError, match="name must be a string, not NoneType"):
        recorded_facts(None)  # type: ignore[arg-type]


def chip(rank: int) -> tuple[str, Any, str]:
    bounds = os.environ["FAKE_PROCESS_BOUNDS"]
    return os.environ["FAKE_VISIBLE_CHIPS"], xmp.replica().device_id, bounds


def test_each_replica_has_a_pretended_chip_of_its_own() -> None:
    before = dict(os.environ)
    with fake_chips(2):
        assert xmp.default_nprocs("fake") == 2
        found = list(xmp.spawn(chip, runtime="fake"))
        with pytest.raises(xmp.PlanError, match=r"nprocs=3.*1, 2"):
            xmp.spawn(chip, nprocs=3, runtime="fake")
        with fake_chips(8):
            assert xmp.default_nprocs("fake") == 8
        assert xmp.default_nprocs("fake") == 2
    assert found == [("0", 0, "1,2,1"), ("1", 1, "1,2,1")]
    assert dict(os.environ) == before


def chips() -> int:
    return xmp.plan(runtime="fake").world_size


def test_pretended_chips_are_left_in_any_order_and_entered_again() -> None:
    before = dict(os.environ)
    two, eight = fake_chips(2), fake_chips(8)
    for first, then, left in ((two, eight, 8), (eight, two, 2)):
        with ExitStack() as stack:
            first.__enter__()
            stack.enter_context(then)
            first.__exit__(None, None, None)
            assert chips() == left
        assert dict(os.environ) == before
    with two, eight, two:
        assert chips() == 2
    assert dict(os.environ) == before


def test_pretended_chips_are_those_of_all_threads() -> None:
    before = dict(os.environ)

    def entered(count: int) -> int:
        with fake_chips(count):
            return chips()

    with ThreadPoolExecutor(1) as pool:
        with fake_chips(2):
            assert pool.submit(entered, 2).result() == 2
            refused = pool.submit(entered, 8)
            with pytest.raises(xmp.PlanError, match=r"\(8\): another thread .* fake_chips\(2\)"):
                refused.result()
            assert chips() == 2
        assert pool.submit(entered, 8).result() == 8
    assert dict(os.environ) == before


def test_a_number_of_chips_that_is_none_is_refused() -> None:
    for count in (0, -1, 16, 10**9):
        with pytest.raises(xmp.PlanError, match=f"count={count}: give a number .* from 1 to 8"):
            fake_chips(count)
    with pytest.raises(TypeError, match="count must be a whole number, not str"):
        fake_chips("8")  # type: ignore[arg-type]


def test_only_who_imports_it_pays_for_it() -> None:
    said = in_fresh_interpreter(
        "import sys, xmp; print('xmp.testing' in sys.modules); import xmp.testing; "
        "print({'torch', 'numpy', 'pytest', 'cloudpickle'} & {*sys.modules})"
    ).stdout
    assert said == "False\nset()\n"


def test_wheel_and_source_have_the_recorded_hosts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (wheel,), (source,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive, tarfile.open(source) as tar:
        for names in (archive.namelist(), tar.getnames()):
            found = {Path(name).stem for name in names if "xmp/testing/facts/" in name}
            assert found == {*RECORDED}
    assert len(RECORDED) > 20
