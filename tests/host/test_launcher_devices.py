"""Who has initialised my accelerator: launchers that have, and what ``spawn`` makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.launching import nothing_started
from tests.support.tpu_hosts import host, plan, variables
from xmp._os import log, probe
from xmp._os.probe.packages import initialised
from xmp._words.types import HostFacts

PROGRAM = """
import json, os, sys
import xmp
from xmp._os import probe

def fn(rank):
    return xmp.all_reduce(rank + 1)

if __name__ == "__main__":
    seen = [list(probe.facts().initialised)]
    import jax
    seen.append(list(probe.facts().initialised))
    jax.numpy.ones(3).block_until_ready()
    seen.append(list(probe.facts().initialised))
    seen.append(list(xmp.plan(2, runtime="cpu").notes))
    seen.append([list(xmp.spawn(fn, nprocs=2, runtime=name)) for name in ("cpu", "jax")])
    try:
        xmp.spawn(fn, nprocs=2, runtime="cpu", start_method="fork")
    except xmp.StartError as error:
        seen.append(str(error))
    print(json.dumps(seen))
"""


def test_jax_that_is_up_is_seen_and_does_not_disturb(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**os.environ, "PYTHONPATH": root, "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    before, imported, used, notes, sums, refused = json.loads(done.stdout.splitlines()[-1])
    assert before == imported == []
    assert used == ["jax:cpu"]
    assert any(note.startswith("JAX has initialised its CPUs in this process") for note in notes)
    assert sums == [[3, 3], [3, 3]]
    assert "JAX has initialised its CPUs in this process" in refused
    assert 'use start_method="forkserver"' in refused
    assert "initialised" not in done.stderr  # every process may use the cores


def test_an_open_chip_is_seen_in_every_process(tmp_path: Path) -> None:
    chip = tmp_path / "accel0"
    chip.write_text("")
    assert initialised((f"{tmp_path}/accel*",)) == ()
    with chip.open():
        assert initialised((f"{tmp_path}/accel*",)) == ("another library:tpu",)


def facts_of(monkeypatch: pytest.MonkeyPatch, facts: HostFacts) -> None:
    """A host with hardware that is not there."""
    monkeypatch.setattr(probe, "facts", lambda: facts)
    monkeypatch.setattr(log, "_once", set())


def nothing(rank: int) -> int:
    return rank


@pytest.mark.parametrize("runtime", ["jax", "pjrt", "torch_tpu"])
@pytest.mark.parametrize(
    ("entry", "who"),
    [
        ("jax:tpu", "JAX has initialised the TPU"),
        ("torch_xla:tpu", "torch_xla has initialised the TPU"),
        ("torch_tpu:tpu", "torch_tpu has initialised the TPU"),
        ("another library:tpu", "another library has initialised the TPU"),
    ],
)
def test_chips_that_the_launcher_holds_are_refused(
    monkeypatch: pytest.MonkeyPatch, runtime: str, entry: str, who: str
) -> None:
    facts_of(monkeypatch, host("v5e", 4, initialised=(entry,)))
    holds = f"{who} in this process, which holds the chips"
    with nothing_started(), pytest.raises(xmp.PlanError, match=holds):
        xmp.spawn(nothing, runtime=runtime)


def test_threads_of_one_process_have_no_hang_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their progress is not the main thread's, where it is looked for."""
    facts_of(monkeypatch, host("v3", 4))
    with pytest.raises(xmp.PlanError, match=r"hang_timeout=5: .*in one process"):
        xmp.spawn(nothing, runtime="pjrt", hang_timeout=5)


def test_the_cores_of_a_host_whose_chips_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    facts_of(monkeypatch, host("v5e", 4, initialised=("jax:tpu",), env=dict(os.environ)))
    assert list(xmp.spawn(nothing, nprocs=2, runtime="cpu")) == [0, 1]


def platforms(rank: int) -> tuple[str | None, str]:
    import jax

    return os.environ.get("JAX_PLATFORMS"), str(jax.config.jax_platforms)


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_jax_stays_on_the_cores_of_a_host_with_chips(
    monkeypatch: pytest.MonkeyPatch, start_method: str
) -> None:
    """Also where a template has imported it already."""
    import jax  # noqa: F401  (what the launcher has loaded, the template loads)

    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    facts_of(monkeypatch, host("v5e", 4, env=dict(os.environ), loaded=("jax",)))
    for _ in range(2):
        found = xmp.spawn(platforms, nprocs=2, runtime="cpu", start_method=start_method)
        assert list(found) == [("cpu", "cpu")] * 2
    monkeypatch.setenv("JAX_PLATFORMS", "tpu,cpu")
    facts_of(monkeypatch, host("v5e", 4, env=dict(os.environ)))
    assert variables(plan(host("v5e", 4, env=dict(os.environ)), "cpu"), "JAX_PLATFORMS") != ["cpu"]


def test_cuda_is_named_once_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = probe.facts()
    facts = HostFacts(
        env=own.env, frameworks=own.frameworks, cpus=own.cpus, initialised=("torch:cuda",)
    )
    facts_of(monkeypatch, facts)
    for _ in range(2):
        assert list(xmp.spawn(nothing, nprocs=2, runtime="cpu")) == [0, 1]
    said = capsys.readouterr().err
    line = "xmp: torch has initialised CUDA in this process, which replicas do not inherit"
    assert said.count(line) == 1


def test_a_plan_names_what_is_up() -> None:
    made: Any = plan(host("v5e", 4, initialised=("torch:cuda", "jax:cpu")))
    assert sum("has initialised" in note for note in made.notes) == 2
