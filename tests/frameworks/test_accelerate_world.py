"""accelerate's state in replicas: the world of the launch, with every way to make it."""

from __future__ import annotations

import re

import pytest

from tests.support.stage import Stage
from tests.support.torchrun import torchrun

pytestmark = pytest.mark.peers

WORLDS = """
    import os, sys
    import accelerate
    import torch
    from accelerate import Accelerator, PartialState
    from accelerate.utils import gather_object, set_seed
    from in_script import say
    import xmp

    def world(rank, first, forks=False):
        if first == "PartialState":
            PartialState()
        accelerator = Accelerator(**({"cpu": True} if first == "cpu=True" else {}))
        assert accelerator.device.type == "cpu"
        if forks and os.fork() == 0:  # no replica of the launch, and on no CPU by xmp's order
            assert not PartialState(cpu=False).__class__._reset_state()
            os._exit(PartialState().num_processes)
        if forks:
            assert os.WEXITSTATUS(os.wait()[1]) == 1
        set_seed(3, device_specific=True)
        drawn = accelerator.gather(torch.rand(1)).tolist()
        assert len(set(drawn)) == accelerator.num_processes
        with accelerator.split_between_processes([10, 20, 30]) as mine:
            parts = gather_object(mine)
        model = accelerator.prepare(torch.nn.Linear(2, 1))
        accelerator.end_training()
        kind = type(model).__name__
        return [accelerator.num_processes, accelerator.process_index, parts, kind]

    if __name__ == "__main__":
        def spawned(*args, **options):
            return [*xmp.spawn(world, args, nprocs=2, runtime="cpu", **options)]

        if "RANK" in os.environ:  # torchrun's, or `xmp run`'s
            say(**{f"rank {os.environ['RANK']}": xmp.launch(world, ("",), runtime="cpu")[0]})
        else:
            PartialState()  # a state of this process is no replica's
            say(
                plain=spawned(""), partial=spawned("PartialState", True), cpu=spawned("cpu=True"),
                group=spawned("", backend="gloo"),
                group_and_partial=spawned("PartialState", backend="gloo"),
                beside_jax=[*xmp.spawn(world, ("",), nprocs=2, runtime="jax")],
                launched=[*xmp.launch(world, ("",), nprocs=2, runtime="cpu")],
                alone=[*xmp.spawn(world, ("",), nprocs=1, runtime="cpu")],
            )
            method = accelerate.state.PartialState.__init__
            assert method.__module__ == "accelerate.state" and not hasattr(method, "__wrapped__")
"""
TWO = [[2, rank, [10, 20, 30], "DistributedDataParallel"] for rank in (0, 1)]


def test_every_way_to_make_it_gives_the_world_of_the_launch(stage: Stage) -> None:
    said = stage.run(WORLDS, timeout=150).said  # sixteen replicas import what DDP needs
    assert said.pop("alone") == [[1, 0, [10, 20, 30], "Linear"]]
    assert list(said.values()) == [TWO] * 7


def test_in_processes_that_another_launcher_started(stage: Stage) -> None:
    path = str(stage.write(WORLDS))
    expected = {f"rank {rank}": each for rank, each in enumerate(TWO)}
    assert torchrun(stage.python, path).said == expected
    ours = stage.python("-m", "xmp", "run", "-n", "2", "--runtime", "cpu", path, timeout=60)
    assert ours.said == expected


APART = """
    import sys
    from accelerate import Accelerator, PartialState
    from in_script import say
    import xmp

    if sys.argv[1] == "top level":
        accelerator = Accelerator()

    def trains(rank, *given):
        return accelerator.num_processes

    def refused(fn, *args, **options):
        try:
            return [*xmp.spawn(fn, args, nprocs=2, runtime="cpu", **options)]
        except (xmp.ReplicaError, TypeError) as error:
            return f"{type(error).__name__}: {error}"

    if __name__ == "__main__":
        if sys.argv[1] == "top level":
            say(loaded=refused(trains), fresh=refused(trains, start_method="spawn"))
        else:
            made = Accelerator()
            say(state=refused(trains, PartialState()), whole=refused(trains, [made]),
                captured=refused(lambda rank: made), fork=refused(trains, start_method="fork"))
"""


@pytest.mark.failing
def test_a_state_of_another_world_is_refused(stage: Stage) -> None:
    inherited = stage.run(APART, "top level", timeout=60).said
    sent = stage.run(APART, "function", timeout=60).said
    inherited["fork"] = sent.pop("fork")
    assert inherited.pop("fresh") == [2, 2]  # its ranks are set before the script is imported
    for text in inherited.values():
        assert re.search("rank 0 in a world of 1, but this is replica [01] of 2", text)
        assert 'Make it inside the function, or under `if __name__ == "__main__":`' in text
    for text in sent.values():
        assert text.startswith("TypeError: ")
        assert "cannot be sent to the replicas" in text
        assert "Make the Accelerator, PartialState or TrainingArguments inside the function" in text
    assert "args[0][0].state (AcceleratorState)" in sent["whole"]
