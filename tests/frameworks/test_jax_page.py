"""The training of docs/coming-from/jax.md; ``compat/test_coming_from.py`` runs the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.stage import ROOT, Stage

pytestmark = pytest.mark.peers

PAGE = Path(ROOT, "docs/coming-from/jax.md")


@pytest.mark.slow
def test_the_training_goes_on_where_it_was(stage: Stage) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (program,) = re.findall(r"```python train\.py\n(.*?)```", text, re.DOTALL)
    out = stage.run(program, str(stage.folder / "checkpoints"), timeout=90).out
    # gloo, which JAX uses on CPUs, writes lines of its own
    found = [line for line in out.splitlines() if line and "peer ranks" not in line]
    assert found == ["went on after step 20", "loss below 0.001: [True, True]"]
