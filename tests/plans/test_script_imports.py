"""The plan for a script: what it imports at its top counts as loaded, and is preloaded."""

from __future__ import annotations

import pytest

from xmp._plan import planner
from xmp._words.types import HostFacts, Request

KNOWN = HostFacts(frameworks={"torch": "2.13.0", "jax": "0.10.2"}, cpus=(0, 1))


@pytest.mark.parametrize(
    ("imports", "runtime", "why"),
    [
        (("jax.numpy",), "jax", "the script imports jax"),
        (("torch.nn", "torch", "flax"), "cpu", "the script imports torch"),
        (("flax",), "cpu", "no accelerator"),
    ],
)
def test_what_a_script_imports_counts_as_loaded(
    imports: tuple[str, ...], runtime: str, why: str
) -> None:
    made = planner.plan(Request(nprocs=2, imports=imports), KNOWN)
    assert made.runtime == runtime
    assert why in made.why
    assert set(imports) <= set(made.preload), "a template imports it beforehand"


def test_a_script_that_imports_torch_xla_does_so_in_its_replicas() -> None:
    request = Request(nprocs=2, runtime="cpu", imports=("torch_xla.core.xla_model",))
    assert not {name for name in planner.plan(request, KNOWN).preload if "torch_xla" in name}
