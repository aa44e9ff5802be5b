"""What a real import writes into the environment, compared with a plan."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

from tests.support.fresh import in_fresh_interpreter
from xmp._os import imports, ports, probe
from xmp._plan import planner, runtimes
from xmp._plan.runtimes import _import_effects, _tpu
from xmp._words.types import HostFacts, Request

SKIP = "TPU_SKIP_MDS_QUERY"
PROGRAM = """
import json, os
before = dict(os.environ)
import jax
print(json.dumps({k: v for k, v in os.environ.items() if before.get(k) != v}))
"""


def test_a_jax_replica_has_what_importing_jax_writes() -> None:
    clean = {k: v for k, v in os.environ.items() if k not in _import_effects.NAMES}
    done = in_fresh_interpreter(PROGRAM, {**clean, "JAX_PLATFORMS": "cpu"})
    written = json.loads(done.stdout)
    written.pop("TPU_LIBRARY_PATH", None)  # the path of libtpu.so, the same in every process
    made = planner.plan(Request(runtime="jax", nprocs=2), HostFacts(env=clean))
    ours = dict(made.hosts[0].replicas[0].set)
    assert {name: ours.get(name) for name in written} == written
    assert set(written) <= set(_import_effects.NAMES)


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        ({"frameworks": {"libtpu": "0.0.52"}}, "1"),
        ({"frameworks": {"libtpu": "0.0.52"}, "env": {SKIP: "0"}}, "0"),
        ({"frameworks": {"libtpu": "0.0.52"}, "tpu": {"chips": 4}}, None),
        ({"frameworks": {"libtpu": None}}, None),
    ],
)
def test_libtpu_asks_no_server_where_there_is_no_tpu(
    facts: dict[str, Any], wanted: str | None
) -> None:
    """Where a replica of another runtime uses JAX, which says so at its import."""
    known = HostFacts(**facts)
    replica = planner.plan(Request(runtime="cpu", nprocs=2), known).hosts[0].replicas[0]
    assert dict(replica.set).get(SKIP, known.env.get(SKIP)) == wanted
    imported = HostFacts(**{**facts, "env": {SKIP: "1"}, "env_at_start": {SKIP: ""}})
    replica = planner.plan(Request(runtime="cpu", nprocs=2), imported).hosts[0].replicas[0]
    assert (SKIP in replica.unset) is (wanted is None)


def test_this_host_plans_leases_and_plans_again() -> None:
    for name in ("cpu", "jax", "fake"):
        facts = probe.facts()
        request = Request(runtime=name, nprocs=2)
        with ports.lease(planner.plan(request, facts).needs) as held:
            made = planner.plan(request, facts, held.ports)
        replicas = made.hosts[0].replicas
        text = " ".join(value for replica in replicas for _, value in replica.set)
        assert all(str(port) in text for port in held.ports.values())


def test_every_runtime_says_what_it_reads_and_owns() -> None:
    for runtime in runtimes.runtimes():
        assert runtime.name
        assert type(runtime).__doc__
        assert len(set(runtime.owned)) == len(runtime.owned), runtime.name
    assert len(set(_tpu.OWNED)) == len(_tpu.OWNED)
    assert not set(_tpu.OWNED) & set(_tpu.INPUTS)


def test_a_finder_that_raises_hides_no_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    """Path hooks are other packages' code: an import of the framework says what is wrong."""

    def hook(path: str) -> Any:
        raise RuntimeError("a broken path hook")

    monkeypatch.setattr(sys, "path_hooks", [hook])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    assert imports.is_the_programs_own("no_such_framework") is False
