"""Scripts of Hydra's under ``xmp run``: each rank has folders of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.stage import Stage

pytestmark = pytest.mark.peers

APP = '''
"""After Hydra's own first example, with a log and the folders that it names."""
import json
import logging
import os

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_original_cwd
from omegaconf import DictConfig

log = logging.getLogger(__name__)


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    log.info("rank %s has lr %s", os.environ["RANK"], cfg.lr)
    with open(os.path.join(HydraConfig.get().runtime.output_dir, "model.txt"), "w") as file:
        file.write(os.environ["RANK"])
    print(json.dumps({
        "rank": int(os.environ["RANK"]), "lr": cfg.lr, "save": cfg.save, "cwd": os.getcwd(),
        "output": HydraConfig.get().runtime.output_dir, "original": get_original_cwd(),
        "job": HydraConfig.get().job.name, "now": cfg.now,
    }), flush=True)


if __name__ == "__main__":
    main()
'''
CONFIG = "lr: 0.1\nsave: ${hydra:runtime.output_dir}/save\nnow: ${now:%H-%M-%S.%f}\n"


@pytest.fixture
def app(stage: Stage) -> str:
    stage.write(APP, "project/train.py")
    stage.write(CONFIG, "project/conf/config.yaml")
    return "project/train.py"


def ranks(stage: Stage, *arguments: str, count: int = 2) -> list[dict[str, Any]]:
    done = stage.python("-m", "xmp", "run", "-n", str(count), *arguments, timeout=60)
    assert done.code == 0, f"{done.out}\n{done.err}"
    found = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    stage.gone()
    return sorted(found, key=lambda each: (each["lr"], each["rank"]))


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


WRITTEN = {".hydra/config.yaml", ".hydra/hydra.yaml", ".hydra/overrides.yaml", "model.txt"}


def test_each_rank_writes_into_a_folder_of_its_own(stage: Stage, app: str) -> None:
    found = ranks(stage, app, "lr=0.5")
    bases = {str(Path(each["output"]).parent) for each in found}
    assert len(bases) == 1, "one launch, one folder of a date and a time"
    assert str(stage.folder / "outputs") in bases.pop()
    for rank, each in enumerate(found):
        output = Path(each["output"])
        assert (each["rank"], output.name, each["lr"]) == (rank, f"rank{rank}", 0.5)
        assert each["save"] == f"{output}/save"
        assert each["cwd"] == each["original"] == str(stage.folder)
        assert each["job"] == "train"
        assert files(output) == {*WRITTEN, "train.log"}
        assert (output / "model.txt").read_text() == str(rank)
        assert f"rank {rank} has lr 0.5" in (output / "train.log").read_text()
        assert "rank" not in (output / ".hydra/overrides.yaml").read_text()
    assert len({each["now"] for each in found}) == 1


def test_a_folder_that_the_user_names_and_the_working_folder(stage: Stage, app: str) -> None:
    found = ranks(stage, app, "hydra.run.dir=mine", "hydra.job.chdir=True")
    for rank, each in enumerate(found):
        assert each["output"] == each["cwd"] == str(stage.folder / f"mine/rank{rank}")
        assert each["original"] == str(stage.folder)
    assert not (stage.folder / "mine/.hydra").exists()


def test_a_multirun(stage: Stage, app: str) -> None:
    found = ranks(stage, app, "-m", "lr=1,2", "hydra.sweep.dir=sweep")
    outputs = [each["output"].removeprefix(f"{stage.folder}/") for each in found]
    assert outputs == ["sweep/rank0/0", "sweep/rank1/0", "sweep/rank0/1", "sweep/rank1/1"]
    for output in outputs:
        assert files(stage.folder / output) >= WRITTEN
    assert (stage.folder / "sweep/rank1/multirun.yaml").exists()
    assert not (stage.folder / "sweep/multirun.yaml").exists()


def test_a_module_with_fresh_interpreters(stage: Stage, app: str) -> None:
    stage.write("", "project/__init__.py")
    options = ("--start-method", "spawn", "-m", "project.train", "hydra.run.dir=out")
    found = ranks(stage, *options)
    assert [Path(each["output"]).name for each in found] == ["rank0", "rank1"]
    assert [each["job"] for each in found] == ["train", "train"]


def test_a_single_replica_writes_where_it_would_without_xmp(stage: Stage, app: str) -> None:
    (each,) = ranks(stage, app, "hydra.run.dir=plain", count=1)
    assert each["output"] == str(stage.folder / "plain")
