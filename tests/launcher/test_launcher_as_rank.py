"""``@xmp.launcher`` in processes of other launchers, and what is said of functions that exit."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

import xmp
from tests.commands.test_run import run
from tests.support.stage import Outcome, Script, Stage

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


@pytest.mark.parametrize(
    "options", [(), pytest.param(("--start-method", "spawn"), marks=pytest.mark.methods)]
)
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


@xmp.launcher(nprocs=2, runtime="cpu")
def exits(code: int | None) -> int:
    if xmp.rank() == 1:
        sys.exit(code)
    return 7


@pytest.mark.parametrize("code", [0, None])
def test_an_exit_in_place_of_a_return_is_said(
    code: int | None, capfd: pytest.CaptureFixture[str]
) -> None:
    assert exits(code) == [7, None]
    said = "xmp: rank 1: sys.exit(0) before the return; its result is None\n"
    assert capfd.readouterr() == ("", said)
