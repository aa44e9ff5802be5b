"""The program of docs/coming-from/ray-train.md that xmp replaces: Ray Train's TorchTrainer."""

from __future__ import annotations

import pytest

from tests.support.pages import pages, same_lines
from tests.support.ray_cluster import RayCluster
from tests.support.stage import Stage

pytestmark = pytest.mark.peers  # not ray: that lane runs at each change


def test_torch_trainer_prints_what_the_page_shows(stage: Stage, cluster: RayCluster) -> None:
    (page,) = pages("ray")
    quiet = {"HOME": str(stage.folder), "TORCHTRAINER_VERBOSE": "0"}  # it writes ~/ray_results
    same_lines(stage, page, "ray", ("before",), env={**cluster.env, **quiet})
