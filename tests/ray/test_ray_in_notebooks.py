"""Launches over the hosts of a Ray cluster from the cells of a notebook."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import notebook_kernel
from tests.support.in_script import is_alive
from tests.support.notebook_kernel import BEGIN, RESTART, text_of
from tests.support.ray_cluster import RayCluster
from tests.support.stage import ROOT, SUPPORT, Stage
from tests.support.waiting import until

pytestmark = pytest.mark.ray

NODE = platform.node()

GRACE = 1

OPTIONS = f"""
import json
from in_script import is_alive
from waiting import until

HERE = os.getcwd()
TWO = dict(
    hosts=2, engine="ray", nprocs=1, runtime="cpu", progress=False, grace={GRACE}
)
factor = 3

class Mine(Exception):
    pass

def scaled(rank):
    return rank * factor

def agents():
    with xmp.launch(scaled, join=False, **TWO) as job:
        print(list(job.results()))
    return [host.pid for host in job.hosts]

def note(name):
    with open(name, 'w') as file:
        json.dump(agents(), file)
"""

CELLS = {
    "begin": BEGIN,
    "options": OPTIONS,
    "live": """
def live(rank):
    print('live', rank, flush=True)
    wait_for(f'{HERE}/shown-0')
    wait_for(f'{HERE}/shown-1')
    return scaled(rank)

print(list(xmp.launch(live, **TWO)))""",
    "fails": """
def fails(rank):
    if rank == 1:
        raise Mine('of a cell')
    wait_for('never')

xmp.launch(fails, **TWO)""",
    "first": "first = agents()",
    "warm": "assert agents() == first",
    "bars": """
from tqdm.auto import tqdm

def bars(rank):
    for _ in tqdm(range(3), f'bar {rank}'):
        pass

xmp.launch(bars, **TWO)""",
    "waits": """
def waits(rank):
    if rank == 0:
        wait_for(f'{HERE}/in-1')
        print('interrupt me', flush=True)
    else:
        open(f'{HERE}/in-1', 'w').close()
    wait_for('never')

xmp.launch(waits, **TWO)""",
    "next": "note('pids')",
    "restart": RESTART,
    "again": BEGIN + OPTIONS,
    "left": """
with open('pids') as file:
    pids = json.load(file)
until(lambda: not any(map(is_alive, pids)), 2, lambda: str(pids))""",
    "after": "note('last')",
}


@pytest.fixture(scope="module")
def messages(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the cells of one notebook got; nothing of it is left a second after its end."""
    folder = tmp_path_factory.mktemp("notebook")
    stage = Stage(folder, (SUPPORT, ROOT))
    touch = {f"[{NODE}#{rank}:{rank}] live {rank}": f"shown-{rank}" for rank in range(2)}
    asked = {"cells": [*CELLS.values()], "touch": touch, "interrupt": "interrupt me"}
    env = {**cluster.env, "IPYTHONDIR": str(folder)}
    program = str(Path(notebook_kernel.__file__))
    done = stage.python(program, stdin=json.dumps({**asked, "seconds": 60}), env=env, timeout=150)
    found: list[dict[str, Any]] = done.json()
    stage.gone()
    last = json.loads((folder / "last").read_text())
    until(lambda: not any(map(is_alive, last)), 2, lambda: f"agents {last} after the kernel")
    return found


def cell(name: str) -> int:
    return [*CELLS].index(name)


def error_of(messages: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The only error of a cell; its traceback without colours."""
    (error,) = [m for m in messages if m["cell"] == cell(name) and m["name"] == "error"]
    return {**error, "traceback": re.sub(r"\x1b\[[0-9;]*m", "", error["traceback"])}


def test_no_other_cell_has_an_error(messages: list[dict[str, Any]]) -> None:
    failed = [m for m in messages if m["name"] == "error"]
    assert [m["cell"] for m in failed] == [cell("fails"), cell("waits")], failed


def test_output_comes_while_the_launch_runs(messages: list[dict[str, Any]]) -> None:
    # The replicas return only when the cell has shown what they have printed.
    *live, results = text_of(messages, cell("live")).splitlines()
    assert sorted(live) == [f"[{NODE}#{rank}:{rank}] live {rank}" for rank in range(2)], messages
    assert results == "[0, 3]"


def test_a_failure_shows_the_lines_of_its_cell(messages: list[dict[str, Any]]) -> None:
    error = error_of(messages, "fails")
    assert error["text"].startswith("rank 1"), error
    assert "line 3, in fails\n    raise Mine('of a cell')" in error["text"]
    assert "xmp.launch(fails, **TWO)" in error["traceback"]
    assert "Mine: of a cell" in error["text"]
    assert not re.search(r"xmp/_\w+", error["traceback"]), error["traceback"]


def test_the_second_launch_has_the_same_agents(messages: list[dict[str, Any]]) -> None:
    assert text_of(messages, cell("warm")) == "[0, 3]\n"


def test_bars_of_all_hosts(messages: list[dict[str, Any]]) -> None:
    shown = text_of(messages, cell("bars"), "stderr")
    for rank in (0, 1):
        assert f"\r[{NODE}#{rank}:{rank}] bar {rank}:   0%|" in shown
        assert f"\r[{NODE}#{rank}:{rank}] bar {rank}: 100%|" in shown


def test_an_interrupted_cell_ends_its_launch(messages: list[dict[str, Any]]) -> None:
    begun = next(m["at"] for m in messages if "interrupt me" in m["text"])
    error = error_of(messages, "waits")
    assert error["at"] - begun < GRACE + 2
    assert error["text"].startswith("the replicas were interrupted here:\nranks 0-1:")
    assert "wait_for('never')" in error["text"]
    assert "xmp.launch(waits, **TWO)" in error["traceback"]
    assert text_of(messages, cell("next")) == "[0, 3]\n", "a launch after it"


def test_a_kernel_that_is_restarted_leaves_no_agent(messages: list[dict[str, Any]]) -> None:
    assert text_of(messages, cell("after")) == "[0, 3]\n", "the cell before it has awaited the end"
