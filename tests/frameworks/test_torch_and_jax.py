"""Programs that import both torch and JAX, as many do by way of a library."""

from __future__ import annotations

import json

import pytest

import xmp
from tests.commands.test_run import run, shown
from tests.support.launching import METHODS
from tests.support.stage import Script, Stage

BOTH = """
import sys
import jax
import torch
import torch.distributed as dist
import xmp

def fn(rank):
    dist.init_process_group("gloo")
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.item(), jax.process_count(), xmp.replica().runtime, xmp.all_reduce(1)

def group(rank):
    return dist.get_world_size(), xmp.replica().runtime

if __name__ == "__main__":
    print(list(xmp.spawn(fn, nprocs=2, start_method=sys.argv[1])))
    print(list(xmp.spawn(group, nprocs=2, start_method=sys.argv[1], backend="gloo")))
"""


@pytest.mark.parametrize("method", [name for name in METHODS if name != "fork"])
def test_jax_has_its_mesh_and_torch_meets_by_env(script: Script, method: str) -> None:
    done = script(BOTH, method)
    assert done.out.splitlines() == [
        str([(3.0, 2, "jax", 2)] * 2),
        str([(2, "cpu")] * 2),
    ], done.err


def test_a_torchrun_script_that_imports_jax_as_well(stage: Stage) -> None:
    stage.write(
        "import json, os\nimport jax\nimport torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "out = {'rank': dist.get_rank(), 'world': dist.get_world_size()}\n"
        "print(json.dumps({**out, 'jax': jax.process_count()}), flush=True)\n",
        "both.py",
    )
    found = shown(run(stage, "-n", "2", "both.py"))
    assert found == [{"rank": rank, "world": 2, "jax": 2} for rank in (0, 1)]


def test_run_script_takes_the_runtime_of_what_the_script_imports_below(script: Script) -> None:
    done = script(
        "import xmp; xmp.run_script()\nimport jax, json\n"
        "print(json.dumps([jax.process_index(), jax.process_count()]), flush=True)\n"
    )
    said = sorted(json.loads(line) for line in done.out.splitlines())
    assert said == [[rank, len(said)] for rank in range(len(said))], done.err
    assert len(said) > 1


def test_a_backend_that_jax_has_not_is_refused_where_jax_is_named() -> None:
    with pytest.raises(xmp.PlanError, match="It has none: omit it"):
        xmp.plan(2, runtime="jax", backend="gloo")
