"""``jax.distributed.initialize()`` under xmp: done already, or refused with both values."""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import Any

import pytest

import xmp
from tests.support.frameworks import replicas as any_replicas
from tests.support.stage import Script

replicas = partial(any_replicas, runtime="jax", nprocs=2)

AGREEING: list[dict[str, Any]] = [
    {},
    {"local_device_ids": [0]},
    {"cluster_detection_method": "deactivate"},
    {"initialization_timeout": 17},
]
CONTRADICTING: list[tuple[dict[str, Any], str]] = [
    ({"coordinator_address": "localhost:1234"}, "coordinator_address='127.0.0.1:"),
    ({"coordinator_bind_address": "[::]:99"}, "coordinator_bind_address='127.0.0.1:"),
    ({"coordinator_address": "no.such.host.invalid:99"}, "coordinator_address='127.0.0.1:"),
    ({"num_processes": 3}, "num_processes=2 "),
    ({"num_processes": "2"}, "num_processes=2 "),
    ({"process_id": 7}, "process_id="),
    ({"local_device_ids": [3]}, "local_device_ids=[0]"),
    ({"local_device_ids": 3}, "local_device_ids=[0]"),
    ({"cluster_detection_method": "slurm"}, "cluster_detection_method='deactivate'"),
]


def answer(arguments: dict[str, Any]) -> str:
    """What ``initialize`` says; "" where it accepts the arguments."""
    import jax

    try:
        jax.distributed.initialize(**arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "" if jax.distributed.is_initialized() else "not initialized"


def all_calls(rank: int) -> dict[str, Any]:
    import jax

    place = os.environ["JAX_COORDINATOR_ADDRESS"]
    named = {"coordinator_address": place, "num_processes": 2, "process_id": rank}
    by_loopback = {"coordinator_address": place.replace("127.0.0.1", "localhost")}
    store = (
        f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"  # what torchrun's scripts give
    )
    mine = {"local_device_ids": rank}  # as a program for GPUs has it
    hosts = {"coordinator_address": place.replace("127.0.0.1", socket.gethostname())}
    agreeing = [*AGREEING, named, by_loopback, {"coordinator_address": store}, mine, hosts]
    before = jax.distributed.initialize
    found = {
        "agree": [answer(arguments) for arguments in agreeing],
        "contradict": [answer(arguments) for arguments, _ in CONTRADICTING],
        "unknown": answer({"speed": 1}),
        "up": jax.process_count(),  # the devices are up from here on
        "later": [answer(arguments) for arguments in agreeing],
        "too late": answer({"heartbeat_timeout_seconds": 50}),
    }
    assert jax.distributed.initialize is before
    return found


def test_what_agrees_does_nothing_and_what_contradicts_is_refused_with_both() -> None:
    for found in replicas(all_calls):
        assert found["agree"] == [""] * 9
        for text, (given, planned) in zip(found["contradict"], CONTRADICTING, strict=True):
            ((name, value),) = given.items()
            assert text.startswith(f"ValueError: jax.distributed.initialize({name}={value!r})")
            assert planned in text
        assert found["unknown"].startswith("TypeError: initialize() got an unexpected keyword")
        assert found["up"] == 2
        assert found["later"] == [""] * 9
        assert "before the first use of a device" in found["too late"]


LATE = (
    "RuntimeError: jax.distributed.initialize(): JAX has initialised its devices in the world that "
    "it has left. Call it before the first use of a device"
)


def again(rank: int) -> list[Any]:
    """Leave and join, several times; then with parameters of the connection itself."""
    import jax
    from jax._src import distributed

    seen: list[Any] = []
    for _ in range(3):
        jax.distributed.shutdown()
        seen.append(jax.distributed.is_initialized())
        jax.distributed.initialize()
        seen.append(jax.distributed.is_initialized())
        assert xmp.all_reduce(1) == 2
    first = distributed.global_state.client
    jax.distributed.initialize(heartbeat_timeout_seconds=50, partition_index=0)
    second = distributed.global_state.client
    jax.distributed.initialize(heartbeat_timeout_seconds=50)
    seen += [second is first, distributed.global_state.client is second]
    seen += [distributed.global_state.partition_index, jax.process_count()]
    seen.append(xmp.all_gather(rank))
    jax.distributed.shutdown()
    return [*seen, answer({})]


@pytest.mark.peers
def test_shutdown_and_initialize_again_and_its_time_limits() -> None:
    assert replicas(again) == [[False, True] * 3 + [False, True, 0, 2, [0, 1], LATE]] * 2


AT_THE_TOP = """
import os
from jax.distributed import initialize
import xmp

def fn(rank):
    import jax
    initialize()
    try:
        initialize(num_processes=5)
    except ValueError as error:
        refused = "num_processes=2 " in str(error)
    return jax.process_index(), jax.process_count(), refused

def alone(rank):
    import jax
    was = jax.distributed.is_initialized()
    initialize()
    initialize(os.environ["JAX_COORDINATOR_ADDRESS"], 1, 0)
    return was, jax.distributed.is_initialized(), jax.process_count()

def old(coordinator_address=None, num_processes=None, process_id=None, local_device_ids=None,
        cluster_detection_method=None, initialization_timeout=300, coordinator_bind_address=None):
    "As in jax 0.4."
    calls.append(coordinator_address)
    return initialize(coordinator_address, num_processes, process_id,
                      cluster_detection_method=cluster_detection_method)

calls = []

if __name__ == "__main__":
    print(list(xmp.spawn(fn, nprocs=2)))
    import jax
    from jax._src import distributed
    try:
        initialize()
    except ValueError as error:
        print(error)
    distributed.initialize = old
    join = lambda rank: distributed.initialize(process_id=0) or jax.distributed.is_initialized()
    print(list(xmp.spawn(join, nprocs=1)), len(calls), distributed.initialize is old)
    distributed.initialize = initialize
    print(list(xmp.spawn(alone, nprocs=1)))
    print(jax.distributed.initialize is initialize, distributed.initialize is initialize,
          "initialize" in vars(distributed.global_state), jax.distributed.is_initialized())
    print(list(xmp.spawn(lambda rank: jax.distributed.initialize(), nprocs=1)))
"""


@pytest.mark.peers
def test_a_function_imported_before_the_replica_and_a_world_of_one(script: Script) -> None:
    done = script(AT_THE_TOP)
    assert done.out.splitlines() == [
        "[(0, 2, True), (1, 2, True)]",
        "coordinator_address should be defined.",  # JAX's own words, outside a replica
        "[True] 1 True",
        "[(False, True, 1)]",
        "True True False False",
        "[None]",
    ], done.err


# --- replicas of another runtime ------------------------------------------------------------------


def asks_for_it(rank: int) -> Any:
    import jax

    jax.distributed.initialize()
    jax.distributed.initialize(num_processes=2)
    seen = (jax.process_index(), jax.process_count(), answer({"num_processes": 3})[:10])
    return seen, xmp.all_gather(jax.device_count())


def own_world(rank: int, address: str) -> Any:
    import jax

    jax.distributed.initialize(address, num_processes=2, process_id=1 - rank)
    return jax.process_index(), jax.process_count()


@pytest.mark.peers
def test_a_cpu_replica_may_ask_for_the_mesh() -> None:
    found = replicas(asks_for_it, runtime="cpu")
    assert found == [((rank, 2, "ValueError"), [2, 2]) for rank in range(2)]


@pytest.mark.peers
def test_a_cpu_replica_may_have_a_world_of_its_own() -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        assert replicas(own_world, address, runtime="cpu") == [(1, 2), (0, 2)]


IN_THE_FUNCTION = """
import sys
import xmp

def inside(rank):
    import jax
    return jax.process_count()

def hidden(rank):
    import importlib
    return importlib.import_module("jax").process_count()

if __name__ == "__main__":
    print(list(xmp.spawn(inside, nprocs=2)))
    print(list(xmp.spawn(hidden, nprocs=2, runtime="cpu")))
    print("by choice", file=sys.stderr, flush=True)
    print(list(xmp.spawn(hidden, nprocs=2)))
"""


@pytest.mark.peers
def test_jax_in_the_function_alone_decides_or_is_warned_about(script: Script) -> None:
    done = script(IN_THE_FUNCTION)
    assert done.out.splitlines() == ["[2, 2]", "[1, 1]", "[1, 1]"], done.err
    named, chosen = done.err.split("by choice")
    assert named == ""
    assert chosen.count("JAX is a world of one process in each of the 2 replicas") == 1
    assert 'runtime="jax"' in chosen


@pytest.mark.peers
@pytest.mark.parametrize("options", [{}, {"runtime": "cpu"}], ids=str)
def test_a_plan_says_whether_jax_may_have_been_meant(options: dict[str, str]) -> None:
    settings = dict(xmp.plan(2, backend="gloo", **options).hosts[0].replicas[0].settings)  # type: ignore[arg-type]
    assert ("jax_apart" in settings) is (options == {})
