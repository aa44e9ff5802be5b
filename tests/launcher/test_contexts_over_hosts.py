"""``join=False`` over two hosts, and several launches of one program."""

from __future__ import annotations

import pytest

from tests.support.placed import Placed
from tests.support.stage import Stage

pytestmark = pytest.mark.hosts

PROGRAM = """
    import contextlib, json, os, pathlib, socket, sys, threading
    import in_script, xmp

    HERE = pathlib.Path(os.environ["FOLDER"])
    HOST = int(os.environ["NODE_RANK"])

    def sums(rank, factor=1.0):
        return float(xmp.all_reduce(rank * factor))

    def times(rank, factor=1.0):  # without torch, which each host would import
        return rank * factor

    def waits(rank):
        (HERE / f"in-fn-{rank}").touch()
        in_script.never_returns()

    def until_told(rank):
        (HERE / f"in-fn-{rank}").touch()
        while not (HERE / "go").exists():
            xmp.heartbeat()
        return rank

    def inner(rank):
        return list(xmp.spawn(place, nprocs=2, runtime="cpu"))

    def place(rank):
        return rank, xmp.world_size(), xmp.host_index()

    def start(fn, *args, nprocs=2, **options):
        return xmp.spawn(fn, args, nprocs=nprocs, runtime="cpu", grace=1.0, **options)

    def error_of(call, *args, **options):
        try:
            return call(*args, **options)
        except xmp.XmpError as error:
            return [type(error).__name__, str(error)]

    def everyone_is_in():
        in_script_until(lambda: len(list(HERE.glob("in-fn-*"))) == 4)

    def in_script_until(condition):
        import time
        end = time.monotonic() + 60
        while not condition() and time.monotonic() < end:
            time.sleep(0.01)

    def one_after_the_other(function=sums):
        first = list(start(function))
        with start(function, 2.0, join=False) as context:
            return [first, list(context.results())]

    def without_collectives():
        return one_after_the_other(times)

    def a_context():
        context = start(until_told, join=False)
        everyone_is_in()
        early = context.join(timeout=0.01)
        (HERE / f"asked-{HOST}").touch()
        if HOST == 0:
            in_script_until(lambda: (HERE / "asked-1").exists())
            (HERE / "go").touch()
        while not context.join(timeout=5):
            pass
        return [early, list(context.results())]

    def a_block_that_is_left():
        with contextlib.suppress(ZeroDivisionError), start(waits, join=False) as context:
            everyone_is_in()
            if HOST == 1:
                1 / 0
            return error_of(context.join)

    def two_at_once():
        context = start(until_told, join=False)
        everyone_is_in()
        refused = []
        thread = threading.Thread(target=lambda: refused.append(error_of(start, times)))
        thread.start()
        thread.join()
        (HERE / f"asked-{HOST}").touch()
        in_script_until(lambda: len(list(HERE.glob("asked-*"))) == 2)
        (HERE / "go").touch()
        context.join()
        return [*refused, list(context.results())]

    def in_a_fork():
        before = list(start(times))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, json.dumps(error_of(lambda: list(start(times)))).encode())
            os._exit(0)
        os.waitpid(child, 0)
        return [before, json.loads(os.read(read, 10000)), list(start(times))]

    def inside():
        return list(start(inner, nprocs=1, start_method="spawn"))

    def after_one_that_only_one_host_made():
        port = int(os.environ["MASTER_PORT"]) + 1000
        if HOST == 0:
            with socket.create_server(("127.0.0.2", port if port < 65536 else port - 2000)):
                first = error_of(start, times)
                in_script_until(lambda: (HERE / "failed").exists())
        else:
            first = error_of(start, times, start_timeout=1)
            (HERE / "failed").touch()
        return [first, list(start(times))]

    if __name__ == "__main__":
        print(json.dumps(globals()[sys.argv[1]]()))
"""


@pytest.fixture
def placed(stage: Stage) -> Placed:
    return Placed(stage)


def both(placed: Placed, name: str, **how: bool) -> list[object]:
    for index in range(2):
        placed.program(PROGRAM, name, index=index, **how)
    return placed.said()


OF_HOSTS = [0.0, 1.0], [2.0, 3.0]


def test_launches_one_after_the_other(placed: Placed) -> None:
    """The second one is joined by the results that its block asks for."""
    assert both(placed, "one_after_the_other") == [[[6.0, 6.0], [12.0, 12.0]]] * 2


def test_launches_of_a_program_without_a_file(placed: Placed) -> None:
    """As in the cells of a notebook, where functions travel by value."""
    found = both(placed, "without_collectives", file=False)
    assert found == [[each, [2 * value for value in each]] for each in OF_HOSTS]


def test_a_context_is_asked_before_the_end(placed: Placed) -> None:
    ends = [[False, [0, 1]], [False, [2, 3]]]
    assert both(placed, "a_context") == ends


def test_a_block_that_one_host_leaves_ends_the_others(placed: Placed) -> None:
    """By terminate(), which the other hosts are told."""
    first, second = both(placed, "a_block_that_is_left")
    assert second is None
    kind, text = first  # type: ignore[misc]
    assert kind == "HostLost", text
    assert "host 1" in text
    assert "terminate()" in text


def test_two_at_once_are_refused(placed: Placed) -> None:
    """The hosts could not agree which of two is which."""
    for host, (refused, results) in enumerate(both(placed, "two_at_once")):  # type: ignore[misc]
        assert refused[0] == "PlanError", refused
        assert "runs already: join it before the next one" in refused[1]
        assert results == [2 * host, 2 * host + 1]


def test_a_forked_child_launches_between_two_launches(placed: Placed) -> None:
    found = both(placed, "in_a_fork")
    assert found == [[each] * 3 for each in OF_HOSTS]


def test_a_launch_inside_a_replica_is_of_its_host_alone(placed: Placed) -> None:
    assert both(placed, "inside") == [[[[0, 2, 0], [1, 2, 0]]]] * 2


def test_a_launch_that_failed_on_one_host_before_they_met(placed: Placed) -> None:
    first, second = both(placed, "after_one_that_only_one_host_made")
    (kind, text), results = first  # type: ignore[misc]
    assert kind == "PortError", text
    assert "give all hosts of this job another MASTER_PORT" in text
    assert results == OF_HOSTS[0]
    (kind, text), results = second  # type: ignore[misc]
    assert kind == "StartError", text
    assert "host 0" in text
    assert results == OF_HOSTS[1]
