"""Lightning's Trainer with ``strategy="xmp"``: failures of replicas, and Ctrl-C."""

from __future__ import annotations

import signal

import pytest

from tests.support.stage import Stage

FAILS = """
    import json, os, sys

    import torch
    import lightning.pytorch as pl
    from lightning.fabric.plugins.environments import LightningEnvironment
    from lightning.pytorch.demos.boring_classes import BoringModel

    import xmp
    import xmp.compat.lightning

    class Fails(BoringModel):
        def training_step(self, batch, index):
            if index == 2 and self.global_rank == 1:
                raise ValueError("no such label")
            return super().training_step(batch, index)

    class Unused(BoringModel):
        def __init__(self):
            super().__init__()
            self.extra = torch.nn.Linear(2, 2)

    class Seen(pl.Callback):
        def on_exception(self, trainer, model, error):
            seen.append(error)

    class Rank(LightningEnvironment):
        def global_rank(self):
            return 0

    def fit(model, strategy="xmp", **options):
        trainer = pl.Trainer(
            strategy=strategy, accelerator="cpu", devices=2, max_steps=4, limit_val_batches=0,
            callbacks=[Seen()], logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, **options,
        )
        try:
            trainer.fit(model)
        except xmp.ReplicaRaised as error:
            assert seen.pop() is error and trainer.state.status == "interrupted"
            assert not any(each.is_alive() for each in trainer.strategy.launcher.procs)
            return error

    if __name__ == "__main__":
        seen = []
        error = fit(Fails())
        assert (error.rank, type(error.__cause__)) == (1, ValueError), error
        assert str(error).endswith("ValueError: no such label"), str(error)

        error = fit(Unused())
        assert "Trainer(strategy='xmp_find_unused_parameters_true')" in str(error), str(error)
        assert fit(Unused(), "xmp_find_unused_parameters_true") is None

        error = fit(BoringModel(), plugins=[Rank()])
        assert "Rank says that this is rank 0 of 2, but xmp has started it as rank 1" in str(error)
        print(json.dumps("done"))
"""


@pytest.mark.failing
def test_failures_name_the_rank_that_caused_them(stage: Stage) -> None:
    assert stage.run(FAILS, timeout=150).json() == "done"


INTERRUPTED = """
    import lightning.pytorch as pl
    from lightning.pytorch.demos.boring_classes import BoringModel

    import xmp.compat.lightning

    class Waits(BoringModel):
        def on_train_batch_end(self, *_):
            open(f"in-fn-{self.global_rank}", "w").close()

    class Seen(pl.Callback):
        def on_exception(self, trainer, model, error):
            print(type(error).__name__, trainer.state.status, flush=True)

    if __name__ == "__main__":
        trainer = pl.Trainer(
            strategy="xmp", accelerator="cpu", devices=2, max_epochs=-1, limit_val_batches=0,
            callbacks=[Seen()], logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )
        trainer.fit(Waits())
"""


@pytest.mark.failing
@pytest.mark.peers
def test_ctrl_c_ends_as_lightning_ends(stage: Stage) -> None:
    process = stage.start(INTERRUPTED)
    stage.in_function(process, replicas=2)
    process.send_signal(signal.SIGINT)
    done = stage.outcome(process)
    assert (done.code, done.out) == (1, "KeyboardInterrupt TrainerStatus.INTERRUPTED\n"), done
    assert "Detected KeyboardInterrupt, attempting graceful shutdown" in done.err
    stage.gone()
