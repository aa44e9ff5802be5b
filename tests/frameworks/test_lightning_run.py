"""Scripts of Lightning's under ``xmp run``, beside torchrun and Lightning's own script launcher."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.stage import Outcome, Stage
from tests.support.torchrun import without_abort

pytestmark = pytest.mark.peers

SCRIPT = """
    import json, os, sys

    import lightning as L
    import torch
    import torchmetrics.utilities.prints
    from lightning.fabric import Fabric
    from lightning.pytorch.utilities import rank_zero_only

    BEGAN = {
        "lightning": rank_zero_only.rank, "torchmetrics":
        torchmetrics.utilities.prints.rank_zero_only.rank,
        "local": os.environ.get("LOCAL_RANK"), "world": os.environ.get("WORLD_SIZE"),
    }
    if {"xmp", "imports xmp"} & {*sys.argv}:
        import xmp.compat.lightning

    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 2)

        def training_step(self, batch, index):
            loss = self.layer(batch[0]).pow(2).mean()
            self.log("loss", loss, sync_dist=True, on_step=False, on_epoch=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def with_trainer(strategy, data):
        model = Model()
        trainer = L.Trainer(
            accelerator="cpu", strategy=strategy, devices=2, max_epochs=2, logger=False,
            default_root_dir=sys.argv[1], enable_progress_bar=False, enable_model_summary=False,
        )
        loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
        trainer.fit(model, loader)
        first = trainer.callback_metrics["loss"].item()
        trainer.fit_loop.max_epochs = 4
        trainer.fit(model, loader)
        best = trainer.strategy.broadcast(trainer.checkpoint_callback.best_model_path)
        environment = trainer.strategy.cluster_environment
        return [
            trainer.global_rank, trainer.world_size, type(environment).__name__, first,
            trainer.callback_metrics["loss"].item(), model.layer.weight.sum().item(),
            os.path.exists(best), rank_zero_only.rank,
        ]

    def with_fabric(strategy, data):
        fabric = Fabric(accelerator="cpu", strategy=strategy, devices=2)
        fabric.launch()  # there is a process for every device already, or Lightning makes them
        model = torch.nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = fabric.setup(model, optimizer)
        for batch in fabric.setup_dataloaders(torch.utils.data.DataLoader(data, batch_size=8)):
            loss = model(batch[0]).pow(2).mean()
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
        inner = fabric.launch(lambda fabric, more: fabric.global_rank + more, 10)
        return [fabric.global_rank, fabric.world_size, loss.item(), inner]

    def main():
        L.seed_everything(1)
        data = torch.utils.data.TensorDataset(torch.randn(64, 8))
        strategy = "xmp" if "xmp" in sys.argv else "ddp"
        said = {"fabric": with_fabric(strategy, data), "trainer": with_trainer(strategy, data)}
        if strategy == "xmp":
            try:
                L.Trainer(accelerator="cpu", strategy=strategy, devices=4, logger=False)
            except ValueError as error:
                said["refused"] = str(error)
        os.write(1, (json.dumps({"began": BEGAN, **said}) + "\\n").encode())

    if __name__ == "__main__":
        main()
"""

LAUNCHERS = {
    "xmp run": ("-m", "xmp", "run", "-n", "2"),
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    "lightning": (),
}


def ranks(stage: Stage, launcher: str, *arguments: str) -> list[dict[str, Any]]:
    """What each rank said, by rank."""
    script = stage.folder / "train.py"
    if not script.exists():
        stage.write(SCRIPT, "train.py")

    def run() -> Outcome:
        folder = str(stage.folder / "runs")
        return stage.python(*LAUNCHERS[launcher], str(script), folder, *arguments, timeout=90)

    done = without_abort(run)
    assert done.code == 0, f"{done.out}\n{done.err}"
    found = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    stage.gone()
    assert done.err.count("GPU available") == 1, done.err
    return sorted(found, key=lambda each: each["trainer"][0])


@pytest.fixture(scope="module")
def ours(shared_stage: Stage, session_mark: None) -> list[dict[str, Any]]:
    return ranks(shared_stage, "xmp run")


def test_a_script_trains_as_under_torchrun(ours: list[dict[str, Any]], stage: Stage) -> None:
    assert [each["began"] for each in ours] == [
        {"lightning": rank, "torchmetrics": rank, "local": str(rank), "world": "2"}
        for rank in range(2)
    ]
    assert [each["trainer"][2] for each in ours] == ["TorchElasticEnvironment"] * 2
    assert [each["trainer"][-2:] for each in ours] == [[True, 0], [True, 1]]
    assert [each["fabric"][-1] for each in ours] == [10, 11]
    assert ours == ranks(stage, "torchrun")


def test_strategy_xmp_takes_the_processes_that_are_there(
    ours: list[dict[str, Any]], stage: Stage
) -> None:
    found = ranks(stage, "xmp run", "xmp")
    for each in found:
        assert "make 4 processes, but" in each.pop("refused")
    assert found == ours


@pytest.mark.slow
def test_so_it_does_under_torchrun(ours: list[dict[str, Any]], stage: Stage) -> None:
    found = ranks(stage, "torchrun", "xmp")
    for each in found:
        assert "make 4 processes, but" in each.pop("refused")
    assert found == ours


@pytest.mark.slow
def test_lightnings_own_script_launcher(ours: list[dict[str, Any]], stage: Stage) -> None:
    """It starts the script once more for each other rank, and xmp is in no way of theirs."""
    found = ranks(stage, "lightning", "imports xmp")
    for each, under_xmp in zip(found, ours, strict=True):
        assert each["trainer"][2] == "LightningEnvironment"
        assert each["trainer"][3:] == under_xmp["trainer"][3:]
        assert each["fabric"] == under_xmp["fabric"]


HYDRA = """
    import json, os

    import hydra
    import lightning as L
    import torch
    from lightning.pytorch.demos.boring_classes import BoringModel

    @hydra.main(version_base="1.3", config_path=None)
    def main(config):
        trainer = L.Trainer(
            accelerator="cpu", strategy="ddp", devices=2, max_steps=config.steps, logger=False,
            enable_progress_bar=False, enable_model_summary=False,
        )
        trainer.fit(BoringModel())
        path = trainer.checkpoint_callback.best_model_path
        said = json.dumps([trainer.global_rank, trainer.global_step, path, os.getcwd()])
        os.write(1, (said + "\\n").encode())

    if __name__ == "__main__":
        main()
"""


@pytest.mark.slow
def test_a_script_of_hydras(stage: Stage) -> None:
    script = str(stage.write(HYDRA))
    arguments = ("+steps=3", "hydra.run.dir=out", "hydra.job.chdir=True")
    done = stage.python(*LAUNCHERS["xmp run"], script, *arguments, timeout=90)
    assert done.code == 0, done.err
    said = sorted(json.loads(line) for line in done.out.splitlines() if line.startswith("["))
    folders = [f"{stage.folder}/out/rank{rank}" for rank in range(2)]
    assert [each[1] for each in said] == [3, 3]
    assert [each[3] for each in said] == folders
    paths = {each[2] for each in said}
    assert paths == {f"{folders[0]}/checkpoints/{paths.copy().pop().rpartition('/')[2]}"}


FAILS = """
    import lightning as L
    from lightning.pytorch.demos.boring_classes import BoringModel

    class Model(BoringModel):
        def training_step(self, batch, index):
            if index == 2 and self.global_rank == 1:
                raise ArithmeticError("no such label")
            return super().training_step(batch, index)

    if __name__ == "__main__":
        trainer = L.Trainer(
            accelerator="cpu", strategy="ddp", devices=2, max_epochs=1, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )
        trainer.fit(Model())
"""


@pytest.mark.failing
def test_a_failure_names_the_rank_that_raised(stage: Stage) -> None:
    """Rank 0 waits in an all-reduce meanwhile, and is not the cause."""
    done = stage.python(*LAUNCHERS["xmp run"], str(stage.write(FAILS)), timeout=90)
    assert done.code == 1
    report = done.err[done.err.rindex("xmp: ") :] if "xmp: " in done.err else done.err
    assert "rank 1 of 2" in report, done.err
    assert "ArithmeticError: no such label" in report, done.err
    stage.gone()
