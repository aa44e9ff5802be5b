"""What no environment can hold: in a file, where libtpu reads one, and named where it does not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.plans import given
from tests.support.tpu_hosts import ALL, host, plan
from xmp._plan import planner
from xmp._plan.runtimes._replica_variables import LONGEST, in_files, still_too_long
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, HostPlan, JobPlan, ReplicaPlan, Request

NAME, PATH = "TPU_PROCESS_ADDRESSES", "TPU_PROCESS_ADDRESSES_PATH"


def slice_of(hosts: int, runtime: str = "pjrt", libtpu: str = "0.0.52", **env: str) -> JobPlan:
    """The plan of the last host of one slice; its replicas have 4 addresses for each host."""
    names = ",".join(f"10.{n >> 8}.{n & 255}.2" for n in range(hosts))
    env = {"TPU_WORKER_HOSTNAMES": names, "TPU_WORKER_ID": str(hosts - 1), **env}
    facts = host("v5p", 4, env=env, frameworks={**ALL, "libtpu": libtpu})
    return plan(facts, runtime)


@pytest.mark.parametrize("runtime", ["pjrt", "jax", "torch_tpu"])
def test_an_inherited_file_never_overrules_the_plan(runtime: str) -> None:
    env = {PATH: "/of/another/launch", "CLOUD_TPU_SLICE_BUILDER_WORKER_IPS": "a:1,b:2"}
    made = plan(host(chips=4, env=env), runtime)
    for replica in made.hosts[0].replicas:
        assert {*env} <= {*replica.unset}
        assert env.keys().isdisjoint(dict(replica.set))
    assert f"dropped {PATH}: the file is another launch's (inherited)" in made.notes
    with pytest.raises(PlanError, match=f"env= sets {PATH}, but xmp assigns it"):
        plan(host(chips=4), runtime, env=(((PATH, "/mine"),),))


@pytest.mark.parametrize("runtime", ["pjrt", "jax"])
def test_addresses_of_a_large_slice_are_in_a_file(runtime: str) -> None:
    made = slice_of(4096, runtime, **{PATH: "/of/another/launch", NAME: "local"})
    ((name, text),) = made.hosts[0].files
    assert name == PATH
    assert text.count(",") == 4 * 4096 - 1
    assert text.endswith("10.15.255.2:8478,10.15.255.2:8479")
    for replica in made.hosts[0].replicas:
        assert NAME not in dict(replica.set)
        assert NAME in replica.unset  # the inherited one must not be there either
    assert f"file      {PATH}: {len(text):,} characters, for the launch" in str(made)
    assert planner.to_json(made)["hosts"][0]["files"] == {PATH: text}
    assert not [note for note in made.notes if "128 KiB" in note]


@pytest.mark.parametrize(
    ("hosts", "runtime", "libtpu", "files", "note"),
    [
        (2, "pjrt", "0.0.52", [], ""),
        (2048, "jax", "0.0.52", [], ""),
        (4096, "jax", "0.0.49", [PATH], ""),
        (4096, "jax", "0.0.48", [], NAME),
        (4096, "pjrt", "0.0.21", [], NAME),
        (4096, "torch_tpu", "0.0.52", [], "TORCH_TPU_SLICEBUILDER_ADDRESSES"),
    ],
)
def test_when_there_is_a_file_and_when_a_note(
    hosts: int, runtime: str, libtpu: str, files: list[str], note: str
) -> None:
    made = slice_of(hosts, runtime, libtpu)
    assert [name for name, _ in made.hosts[0].files] == files
    notes = [each.split(" ")[0] for each in made.notes if "longer than 128 KiB" in each]
    assert notes == [note] * bool(note)


@pytest.mark.parametrize(
    ("values", "moved"),
    [
        (["x" * (LONGEST - 2)] * 2, False),  # "L=" and the value: what execve still takes
        (["x" * (LONGEST - 1)] * 2, True),
        (["é" * (LONGEST // 2)] * 2, True),  # bytes count
        (["x" * LONGEST, "y" * LONGEST], False),  # one file cannot say two things
    ],
)
def test_the_limit_is_that_of_execve(values: list[str], moved: bool) -> None:
    replicas = tuple(ReplicaPlan(i, i, i, set=(("L", v),)) for i, v in enumerate(values))
    made = in_files(HostPlan(0, "", replicas), {"L": "L_PATH"})
    assert made.files == ((("L_PATH", values[0]),) if moved else ())
    assert not in_files(HostPlan(0, "", replicas), {}).files
    too_long = any(len(f"L={value}".encode()) > LONGEST for value in values)
    assert bool(still_too_long([made])) is (too_long and not moved)


def test_a_value_of_the_user_that_no_program_can_have_is_refused() -> None:
    def planned(size: int, **more: Any) -> JobPlan:
        env = ((("DATA", "x" * size),),)
        return planner.plan(Request(nprocs=2, runtime="cpu", env=env, **more), HostFacts())

    most = LONGEST - len("DATA=")
    assert len(given(planned(most))["DATA"]) == most
    with pytest.raises(PlanError, match=r"DATA 131,067 characters.*131,071 bytes.*args="):
        planned(most + 1)
