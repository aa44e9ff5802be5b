"""``nprocs=1`` on several hosts: the function has a process that the others' failure can end.

``tests/compat/test_hosts_of_faces.py`` has ``xmp.launcher``.
"""

from __future__ import annotations

import pytest

from tests.support.placed import Placed
from tests.support.stage import Stage

pytestmark = pytest.mark.hosts

PROGRAM = """
    import json, os, pathlib, sys
    import in_script, xmp

    HERE = pathlib.Path(os.environ["FOLDER"])

    def place(rank):
        return rank, os.getpid() != int(os.environ["LAUNCHER"]), xmp.world_size()

    def fails(rank):
        (HERE / f"in-fn-{rank}").touch()
        if rank == 1:
            raise ValueError("no such label")
        in_script.never_returns()

    def by_spawn(function, **options):
        return xmp.spawn(function, nprocs=1, **options)

    def by_launch(function, **options):
        return xmp.launch(function, nprocs=1, **options)

    if __name__ == "__main__":
        os.environ["LAUNCHER"] = str(os.getpid())
        start = globals()[sys.argv[1]]
        try:
            print(json.dumps(list(start(globals()[sys.argv[2]], runtime="cpu"))))
        except xmp.XmpError as error:
            rank = getattr(error, "rank", None)
            print(json.dumps([type(error).__name__, rank, str(error)]))
"""


@pytest.fixture
def placed(stage: Stage) -> Placed:
    return Placed(stage)


@pytest.mark.parametrize("start", ["by_spawn", "by_launch"])
def test_it_has_a_process_of_its_own(placed: Placed, start: str) -> None:
    for index in range(2):
        placed.program(PROGRAM, start, "place", index=index)
    assert placed.said() == [[[0, True, 2]], [[1, True, 2]]]


def test_the_failure_of_the_other_host_ends_it(placed: Placed) -> None:
    for index in range(2):
        placed.program(PROGRAM, "by_spawn", "fails", index=index)
    for kind, rank, text in placed.said():
        assert (kind, rank) == ("ReplicaRaised", 1), text
        assert "ValueError: no such label" in text


def test_alone_it_runs_in_the_caller(stage: Stage) -> None:
    done = stage.run(PROGRAM, "by_spawn", "place", env={"NNODES": "1", "FOLDER": str(stage.folder)})
    assert done.json() == [[0, False, 1]]
