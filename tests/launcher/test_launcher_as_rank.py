"""``@xmp.launcher`` in processes of other launchers, and what is said of functions that exit."""

from __future__ import annotations

import json
from typing import Any

import pytest

import xmp
from tests.commands.test_run import run
from tests.support.stage import Outcome, Script, Stage
from tests.support.torchrun import torchrun

DECORATED = """
import json, sys
import xmp

@xmp.launcher
def inner(x):
    return x + 1

@xmp.launcher
def train(x, scale=1):
    import torch.distributed as dist
    return [xmp.rank(), dist.get_world_size(), x * scale, inner(x)]

if __name__ == "__main__":
    for _ in range(4):
        found = train(3, scale=2)
    # torchrun runs it with -u, where print writes the end of a line by itself.
    sys.stdout.write(json.dumps(found) + "\\n")
"""
BOTH = [[[0, 2, 6, 4]], [[1, 2, 6, 4]]]


def lines(done: Outcome) -> list[Any]:
    assert done.code == 0, f"{done.out}\n{done.err}"
    return sorted(json.loads(line) for line in done.out.splitlines())


def test_under_torchrun_a_call_is_this_rank(stage: Stage) -> None:
    """Four calls: torch's store would refuse a second group at the same address, now and then."""
    stage.write(DECORATED, "train.py")
    assert lines(torchrun(stage.python, "train.py")) == BOTH


@pytest.mark.parametrize("options", [(), ("--start-method", "spawn")])
def test_under_xmp_run_too(stage: Stage, options: tuple[str, ...]) -> None:
    stage.write(DECORATED, "train.py")
    assert lines(run(stage, "-n", "2", *options, "train.py")) == BOTH


def test_started_by_the_user_it_returns_all(script: Script) -> None:
    done = script(DECORATED, env={"XMP_RUNTIME": "cpu"})
    found = lines(done)[0]
    assert found == [[rank, len(found), 6, 4] for rank in range(len(found))]


@xmp.launcher
def decorated(x: int = 0) -> int:
    return x


@pytest.mark.parametrize("start", [xmp.spawn, xmp.launch, xmp.start_processes])
def test_what_launches_itself_is_not_launched_with_a_rank(start: Any) -> None:
    """It would take the rank for its first argument, without a word."""
    with pytest.raises(TypeError, match="decorated launches itself"):
        start(decorated, (), 2)


EXITS = """
import sys
import xmp

@xmp.launcher(nprocs=2, runtime="cpu")
def train(code):
    if xmp.rank() == 1:
        sys.exit(code)
    return 7

if __name__ == "__main__":
    print(train(0 if sys.argv[1] == "0" else None))
"""


@pytest.mark.parametrize("code", ["0", "None"])
def test_an_exit_in_place_of_a_return_is_said(script: Script, code: str) -> None:
    done = script(EXITS, code)
    assert done.out == "[7, None]\n"
    assert done.err == "xmp: rank 1: sys.exit(0) before the return; its result is None\n"
