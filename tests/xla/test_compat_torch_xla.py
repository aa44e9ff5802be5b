"""Programs of torch_xla's own documentation, under torch_xla 2.9 and under xmp.compat.torch_xla.

They differ in the line that imports the launcher, and print the same.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import xmp.compat.torch_xla as ours
from xmp._words.types import Request

pytestmark = pytest.mark.xla
ROOT = Path(__file__).parents[2]
THEIRS = "import torch_xla.distributed.xla_multiprocessing as xmp\nfrom torch_xla import launch"
OURS = "import xmp.compat.torch_xla as xmp\nfrom xmp.compat.torch_xla import launch"
TRAIN = """
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.runtime as xr
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

SERIAL_EXEC = xmp.MpSerialExecutor()
torch.manual_seed(0)
WRAPPED_MODEL = xmp.MpModelWrapper(
    torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
)

def get_dataset():
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    return TensorDataset(x, torch.tensor(digits.target))

def _mp_fn(index, flags):
    loader = DataLoader(SERIAL_EXEC.run(get_dataset), batch_size=256)
    device = torch_xla.device()
    model = WRAPPED_MODEL.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=flags["lr"] * xr.world_size())
    for epoch in range(flags["epochs"]):
        for data, target in pl.MpDeviceLoader(loader, device):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(data), target)
            loss.backward()
            xm.optimizer_step(optimizer)
        line = f"{index} of {xr.world_size()}, epoch {epoch}: {loss.item():.6f}"
        xm.master_print(line, flush=True)

def one_process():
    global WRAPPED_MODEL  # torch_xla has trained it here
    torch.manual_seed(0)
    WRAPPED_MODEL = xmp.MpModelWrapper(
        torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    )
    return launch(_mp_fn, args=(FLAGS,), debug_single_process=True)

FLAGS = {"lr": 0.1, "epochs": 2}
"""
CALLS = {
    "launch": "launch(_mp_fn, args=(FLAGS,), start_method='fork')",
    "spawn": "xmp.spawn(_mp_fn, args=(FLAGS,), start_method='fork')",
    "nprocs=1": "xmp.spawn(_mp_fn, args=(FLAGS,), nprocs=1, start_method='fork')",
    "one process": "one_process()",
}
"""In turn in one program: first those that start processes, by fork, as each import of torch_xla
takes 8 s of processor time. The programs of docs/coming-from have the default, spawn."""


RUNNING = """
def running():
    job = xmp.spawn(abs, join=False, start_method="fork")
    return type(job).__name__, list(job.results())
"""


def environment(**env: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PJRT_DEVICE": "CPU", "PYTHONPATH": path, **env}


def run(folder: Path, source: str, *before: str) -> str:
    path = folder / "train.py"
    path.write_text(source)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *before, str(path)],
        capture_output=True, text=True, timeout=300, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def program(launcher: str, *calls: str) -> str:
    lines = "".join(f"    print({call})\n" for call in calls)
    return f'{launcher}\n{TRAIN}\nif __name__ == "__main__":\n{lines}'


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What torch_xla prints: the two epochs and None, of each call; under torchrun, too, it is what
    the first prints."""
    folder = tmp_path_factory.mktemp("theirs")
    return run(folder, program(THEIRS, *CALLS.values())).splitlines()


def test_a_training_prints_the_same(tmp_path: Path, theirs: list[str]) -> None:
    assert [line == "None" for line in theirs] == [False, False, True] * len(CALLS), theirs
    source = program(f"{OURS}\n{RUNNING}", "running()", *CALLS.values())
    running, *ours = run(tmp_path, source).splitlines()
    assert ours == theirs
    assert running == "('ProcessContext', [0])"


def test_under_torchrun_too(tmp_path: Path, theirs: list[str]) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1")
    assert theirs[0].startswith("0 of 1, epoch 0")
    ours = run(tmp_path, program(OURS, CALLS["launch"]), *torchrun)
    assert ours.splitlines() == theirs[:3]


def test_the_snippets_of_colab_run_in_a_kernel(tmp_path: Path, theirs: list[str]) -> None:
    cells = [OURS, TRAIN, CALLS["spawn"], "launch(_mp_fn, args=(FLAGS,))"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "notebook_kernel.py")],
        input=json.dumps({"cells": cells, "touch": {}, "seconds": 280}), cwd=tmp_path,
        capture_output=True, text=True, timeout=300, check=False,
        env=environment(IPYTHONDIR=str(tmp_path), PYTHONWARNINGS="ignore"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    messages: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    expected = theirs[:2]
    for cell in (2, 3):
        got = "".join(m["text"] for m in messages if (m["cell"], m["name"]) == (cell, "stdout"))
        assert got.splitlines() == expected, messages


@pytest.mark.parametrize("name", ["spawn", "launch", "MpModelWrapper.to", "MpSerialExecutor.run"])
def test_parameters_and_defaults_are_torch_xlas(name: str) -> None:
    import torch_xla
    import torch_xla.distributed.xla_multiprocessing as theirs

    def signature(thing: Any) -> list[tuple[str, Any, Any]]:
        for part in name.split("."):
            thing = getattr(thing, part)
        return [(p.name, p.kind, p.default) for p in inspect.signature(thing).parameters.values()]

    assert signature(ours) == signature(torch_xla if name == "launch" else theirs)


def test_a_launch_plans_what_torch_xla_configures(monkeypatch: pytest.MonkeyPatch) -> None:
    """test_topology.py compares the plans of this request with torch_xla's own on every slice."""
    asked: list[Request] = []
    monkeypatch.setattr("xmp._calls.host.launch", lambda request, call, join: asked.append(request))
    ours.spawn(print)
    ours.launch(print)
    assert asked == [Request(runtime="pjrt")] * 2


def test_numbers_that_do_not_fit_are_a_value_error_under_both() -> None:
    import torch_xla.distributed.xla_multiprocessing as theirs

    for spawn in (theirs.spawn, ours.spawn):
        with pytest.raises(ValueError, match="nprocs"):
            spawn(print, nprocs=0)
