"""scripts/examples/ray_two_hosts.py, on a cluster of two nodes."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.support.ray_cluster import RayCluster
from tests.support.stage import ROOT, Stage

pytestmark = pytest.mark.ray

FILES = ("ray_two_hosts.py", "ddp_digits.py")


def test_the_hosts_get_the_module_and_train_one_model(stage: Stage, cluster: RayCluster) -> None:
    for name in FILES:
        shutil.copy(ROOT / "scripts/examples" / name, stage.folder)
    done = stage.python(FILES[0], cwd=stage.folder, env=cluster.env, timeout=150)
    found = re.findall(r"^rank (\d) on cpu: test accuracy (0\.\d+)$", done.out, re.MULTILINE)
    assert [rank for rank, _ in found] == ["0", "1", "2", "3"], f"{done.out}\n{done.err}"
    ((accuracy),) = {accuracy for _, accuracy in found}
    assert float(accuracy) > 0.8
    stage.gone()
