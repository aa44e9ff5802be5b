"""The programs of docs/guide/ray.md, on a cluster of two nodes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import pages, same_lines
from tests.support.ray_cluster import RayCluster
from tests.support.stage import Stage

pytestmark = pytest.mark.ray

PAGE = (Path(__file__).parents[2] / "docs/guide/ray.md").read_text()
PROGRAMS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
PRINTED = {
    "first.py": "[(0, 12.0), (0, 12.0), (1, 12.0), (1, 12.0)]\n",
    "twice.py": "places: [(0, 0), (1, 0)]\nresults: [1, 1]\nsame agents: True\n",
}


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_the_programs_of_the_page(stage: Stage, cluster: RayCluster, name: str) -> None:
    assert sorted(PROGRAMS) == sorted(PRINTED)
    assert len(PROGRAMS) == PAGE.count("```python")
    path = stage.write(PROGRAMS[name], name)
    done = stage.python(str(path), env=cluster.env, timeout=90)
    assert (done.code, done.out) == (0, PRINTED[name]), done.err
    stage.gone()


def test_checkpoints_of_a_launch_that_starts_again(stage: Stage, cluster: RayCluster) -> None:
    page = (Path(__file__).parents[2] / "docs/coming-from/ray-train.md").read_text()
    ((name, program),) = re.findall(r"```python (\w+\.py)\n(.*?)```", page, re.DOTALL)
    path = stage.write(program, name)
    done = stage.python(str(path), str(stage.folder / "saved.pt"), env=cluster.env, timeout=90)
    assert (done.code, done.out) == (0, "[(1, 2), (1, 2)]\n"), done.err


LANE = "ray"


def test_the_program_in_place_of_ray_trains_prints_what_the_page_shows(
    stage: Stage, cluster: RayCluster
) -> None:
    """Ray Train's own is in test_ray_train_itself.py."""
    (page,) = pages(LANE)
    same_lines(stage, page, LANE, ("after",), env=cluster.env)
