"""What xmp is in processes of a real torchrun: one run of two goes through all that is looked at.

Each part says what it has found; to import torch is most of what a run costs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.frameworks.test_data_parallel_launchers import STEP, WANTED
from tests.launcher.test_launch import BOTH_RANKS, REFUSED, TRAIN, check_said, write
from tests.launcher.test_launcher_as_rank import DECORATED
from tests.support.in_script import TOKEN
from tests.support.stage import Outcome, Python, Stage
from tests.support.torchrun import torchrun

PROGRAM = """
    import os, sys
    import xmp

    def total(rank):
        return xmp.all_reduce(rank + 1)

    def group(rank):
        import torch.distributed
        return torch.distributed.get_rank()

    def mine(*error):
        sys.stderr.write("mine\\n")

    def keeps_the_hook():
        before, sys.excepthook = sys.excepthook, mine
        xmp.launch(group, runtime="cpu", backend="auto")
        kept, sys.excepthook = sys.excepthook is mine, before
        return kept

    def main():
        import decorated, in_script, refused, train

        def say(**facts):
            in_script.say(**{f"{name} {xmp.rank()}": fact for name, fact in facts.items()})

        refused.refuses()
        say(variables=dict(os.environ))
        train.trains()
        say(repeated=[xmp.launch(total, backend="gloo")[0] for _ in range(5)])
        say(decorated=[decorated.train(3, scale=2) for _ in range(4)])
        import step  # with torch, which the program has not imported so far
        say(launch=xmp.launch(step.fn, runtime="cpu", backend="auto")[0])
        say(hook=keeps_the_hook())
        # From here on as a script that launches nothing.
        summed = xmp.all_reduce(xmp.rank() + 1)
        made = xmp.once_per_host(lambda: f"made by {xmp.rank()}")
        say(world=[xmp.world_size(), summed, made, xmp.broadcast(xmp.rank(), 1)])
        xmp.init_process_group()
        say(script=step.step())
        xmp.barrier()
        import torch.distributed
        torch.distributed.destroy_process_group()

    if __name__ == "__main__":
        main()
"""


@pytest.fixture(scope="module")
def done(shared_stage: Stage) -> Outcome:
    for name, source in (("train", TRAIN), ("refused", REFUSED)):
        shared_stage.write(source, f"{name}.py")
    for name, source in (("decorated", DECORATED), ("step", STEP)):
        shared_stage.write(source, f"{name}.py")
    path = shared_stage.write(PROGRAM, "program.py")
    found = torchrun(shared_stage.python, str(path), "torchrun", cwd=shared_stage.folder)
    assert found.code == 0, f"{found.out}\n{found.err}"
    return found


def by_rank(done: Outcome, name: str) -> list[object]:
    return [done.said[f"{name} {rank}"] for rank in (0, 1)]


# --- launches ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("done")
def test_under_a_real_torchrun(shared_stage: Stage) -> None:
    check_said(shared_stage.folder)


def test_spawn_is_refused_in_a_process_of_torchrun(done: Outcome) -> None:
    lines = [line for line in done.out.splitlines() if not line.startswith("@")]
    assert sorted(lines) == BOTH_RANKS


PLACED = """
    import xmp

    def fn(rank):
        return rank, xmp.world_size()

    if __name__ == "__main__":
        print(list(xmp.launch(fn, nprocs=2, runtime="cpu", timeout=60)), flush=True)
"""


def test_with_one_process_on_each_host_it_is_spawn(
    done: Outcome, tmp_path: Path, python: Python
) -> None:
    """In torchrun's own variables, but for the counts."""
    said = done.said["variables 0"].items()
    given = {name: value for name, value in said if name not in {*os.environ, TOKEN}}
    assert given["TORCHELASTIC_RUN_ID"]
    assert given.pop("OMP_NUM_THREADS") == "1"  # which it sets for two and more
    counts = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), "1")
    assert {given[name] for name in counts} == {"2"}
    placed = python(write(tmp_path, PLACED), cwd=tmp_path, env={**given, **counts})
    assert placed.code == 0, placed.err
    assert placed.out == "[(0, 2), (1, 2)]\n"


def test_launches_one_after_another_meet_each_time(done: Outcome) -> None:
    """A second process group in torchrun's store finds the keys of the first, and may fail."""
    assert by_rank(done, "repeated") == [[3] * 5] * 2


def test_under_torchrun_a_call_is_this_rank(done: Outcome) -> None:
    """Four calls: torch's store would refuse a second group at the same address, now and then."""
    assert by_rank(done, "decorated") == [[[[rank, 2, 6, 4]]] * 4 for rank in (0, 1)]


def test_a_launch_gives_the_excepthook_back(done: Outcome) -> None:
    assert by_rank(done, "hook") == [True, True]


# --- a script, and data_parallel -----------------------------------------------------------------


def test_under_torchrun_it_is_torchruns_world(done: Outcome) -> None:
    assert by_rank(done, "world") == [[2, 3, "made by 0", 1]] * 2


@pytest.mark.parametrize("program", ["script", "launch"])
def test_data_parallel_under_torchrun(program: str, done: Outcome) -> None:
    assert by_rank(done, program) == [WANTED] * 2
