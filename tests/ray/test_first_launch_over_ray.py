"""How the first launch of a driver begins: agents and templates start before there is a plan."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.ray_cluster import RayCluster
from tests.support.stage import Stage

pytestmark = pytest.mark.ray

BENCH = Path(__file__).parents[2] / "scripts" / "_bench"

FIRST = """
    from types import SimpleNamespace

    import torch
    import xmp
    from in_script import comm, descendants, say, template_above
    from waiting import until
    from xmp.plugins.ray.engine import engine
    from xmp._words.types import Request

    def template(rank):
        assert torch.ones(1).item() == 1
        return template_above()

    def begun(group):
        below = [descendants(agent.pid) for agent in group.agents()]
        return [[pid for pid in pids if comm(pid) == "xmp-template"] for pids in below]

    if __name__ == "__main__":
        settings = SimpleNamespace(limits=None, start_method="forkserver")
        call = SimpleNamespace(settings=settings, fn=template)
        request = Request(nprocs=1, runtime="cpu")
        group = engine.group(engine.checked(2), request, call)
        until(lambda: all(begun(group)), 30)
        before = begun(group)
        group.release(lost=False)
        used = xmp.launch(
            template, hosts=2, engine="ray", nprocs=1, runtime="cpu", progress=False
        )
        say(before=before, used=[[pid] for pid in used], after=begun(group))
"""


def test_templates_begin_before_there_is_a_plan(stage: Stage, cluster: RayCluster) -> None:
    said = stage.run(FIRST, env=cluster.env, timeout=90).said
    assert said["before"] == said["used"] == said["after"]


def test_the_bench_measures_a_first_and_a_second_launch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import cases
    from figures import Figures
    from runner import Runner

    figures: Any = Figures()
    cpus = sorted(os.sched_getaffinity(0))
    runner = Runner(figures, cpus, 1, lambda *_: None, {})
    runner.measure(cases.CASES["ray"], ["xmp"])
    assert not figures.failed, figures.failed
    first, second = (figures.median(("ray", "xmp", f"seconds@{n}")) for n in ("first", "second"))
    assert 0 < second < first
