"""Lightning's Trainer in a notebook: the model is a cell's, and a second cell fits again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.notebook_kernel import text_of

pytestmark = [pytest.mark.first_pass, pytest.mark.failing, pytest.mark.peers]

CELLS = (
    """
import lightning.pytorch as pl
from lightning.pytorch.demos.boring_classes import BoringModel
import xmp.compat.lightning

class Model(BoringModel):
    def on_train_start(self):
        print('rank', self.global_rank)

quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False)
trainer = pl.Trainer(
    strategy='xmp', accelerator='cpu', devices=2, max_epochs=1, limit_train_batches=2,
    limit_val_batches=0, enable_checkpointing=False, **quiet)
""",
    """
model = Model()
trainer.fit(model)
print(trainer.global_step)
""",
    """
trainer.fit_loop.max_epochs = 2
trainer.fit(model)
print(trainer.global_step)
""",
)


def test_a_trainer_fits_twice(kernel: Callable[..., list[dict[str, Any]]]) -> None:
    messages = kernel(*CELLS)
    for cell, steps in ((1, "2"), (2, "4")):
        shown = text_of(messages, cell).split("\n")
        assert sorted(shown) == ["", steps, "rank 0", "rank 1"], messages
