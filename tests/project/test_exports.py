"""The public names: ``xmp.__all__`` lists all of them, and each has ``xmp`` as its module."""

from __future__ import annotations

import inspect
import types

import pytest

import xmp

# The names that programs may rely on.
PROMISED = {
    *("spawn", "launch", "run_script", "start_processes", "Results", "ProcessContext", "plan"),
    "host_facts",
    *(
        "preload",
        "shutdown",
        "default_nprocs",
        "MpModelWrapper",
        "MpSerialExecutor",
        "once_per_host",
        "rank",
        "local_rank",
    ),
    *("world_size", "local_world_size", "host_index", "device", "replica", "init_process_group"),
    *("barrier", "heartbeat", "breakpoint", "preempted", "all_reduce", "broadcast", "all_gather"),
    *("XmpError", "PlanError", "PortError", "StartError", "ReplicaError", "ReplicaRaised"),
    *("ReplicaDied", "ReplicaTimeout", "JobPlan", "HostFacts"),
    "Event",
    *("launcher", "local_group", "data_parallel"),
}


# What the face's own code needs; everything else without an underscore is public.
OF_TYPING = {"annotations", "TYPE_CHECKING", "Any"}


def public_names() -> set[str]:
    return {
        name
        for name in set(dir(xmp)) - OF_TYPING
        if not name.startswith("_") and not isinstance(getattr(xmp, name), types.ModuleType)
    }


def test_all_is_what_is_there() -> None:
    assert set(xmp.__all__) == public_names()
    assert len(set(xmp.__all__)) == len(xmp.__all__)


def test_what_was_promised_is_there() -> None:
    assert set(xmp.__all__) >= PROMISED


@pytest.mark.parametrize("name", sorted(xmp.__all__))
def test_a_public_object_calls_itself_xmp_and_explains_itself(name: str) -> None:
    thing = getattr(xmp, name)
    if inspect.isclass(thing) or inspect.isroutine(thing):
        assert thing.__module__ == "xmp"
        assert inspect.getdoc(thing), f"xmp.{name} has no docstring"


def test_the_package_is_typed_and_mapped() -> None:
    from importlib import resources

    assert resources.files("xmp").joinpath("py.typed").is_file()
    assert xmp.__version__
    assert len((xmp.__doc__ or "").splitlines()) >= 10  # the map of the rest
