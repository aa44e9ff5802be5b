"""``hosts=`` and ``engine=`` that cannot be: one clear error, before any process exists."""

from __future__ import annotations

import multiprocessing
import re
from typing import Any

import psutil
import pytest

import xmp
from xmp._engines.local import engine
from xmp.testing import recorded_facts


def function(rank: int, *_: Any) -> int:
    return rank


LOCAL: dict[str, Any] = {"engine": "local", "hosts": 2, "runtime": "cpu", "nprocs": 2}

PLANS: list[tuple[dict[str, Any], str]] = [
    ({"hosts": 0}, "hosts=0: give a whole number from 1 up"),
    ({"hosts": -3}, "hosts=-3: give"),
    ({"hosts": 254}, "one machine can play 253 hosts at most"),
    ({"hosts": 10**9}, "one machine can play 253 hosts at most"),
    ({"hosts": None}, "engine='local' without hosts=: give the number"),
    ({"engine": None}, "hosts=2 without engine=.*Allowed: engine='local'"),
    ({"engine": "horovod"}, "engine='horovod': there is none of this name. Allowed: 'local'"),
    ({"start_method": "fork"}, 'start_method="fork" with engine='),
    ({"nprocs": 10**7}, "hosts=2, nprocs=10000000: this host can carry at most"),
    ({"nprocs": 0}, "nprocs=0: give a number from 1 up"),
    ({"runtime": "nope"}, "runtime='nope' is not known"),
    ({"show": [4]}, "there is no rank 4; this launch has the ranks 0 to 3"),
    ({"devices": [0]}, "devices="),
    ({"env": {"RANK": "1"}}, "env= sets RANK"),
    ({"events": "/no/such/folder/x"}, "cannot be opened"),
    ({"max_restarts": -1}, "max_restarts=-1"),
]

TYPES: list[tuple[dict[str, Any], str]] = [
    ({"hosts": "4"}, "hosts must be a whole number from 1 up, not str: '4'"),
    ({"hosts": True}, "not bool: True"),
    ({"hosts": 2.0}, "not float: 2.0"),
    ({"engine": 7}, "engine must be one of 'local', or None, not int: 7"),
    ({"engin": "local"}, "engin.*Did you mean 'engine'"),
    ({"fn": 3}, "fn must be callable"),
]


@pytest.mark.parametrize(
    ("given", "text"), [*PLANS, *TYPES], ids=[str(given) for given, _ in [*PLANS, *TYPES]]
)
def test_are_refused(given: dict[str, Any], text: str) -> None:
    before = psutil.Process().children()
    kind = TypeError if given in [each for each, _ in TYPES] else xmp.PlanError
    options: dict[str, Any] = {"fn": function, **LOCAL, **given}
    with pytest.raises(kind, match=re.compile(text, re.DOTALL)):
        xmp.launch(**options)
    assert psutil.Process().children() == before


@pytest.mark.parametrize("name", ["kaggle-t4x2", "kaggle-v5e-8", "amd"])
def test_real_devices_are_not_used_twice(name: str) -> None:
    plan = xmp.plan(facts=recorded_facts(name))
    with pytest.raises(xmp.PlanError, match="several hosts on one machine"):
        engine.refuse(plan)


def test_a_lock_belongs_to_one_host() -> None:
    context = multiprocessing.get_context("spawn")
    with pytest.raises(TypeError, match="connects processes of one host"):
        xmp.launch(function, (context.Lock(),), **LOCAL)
    reader, writer = context.Pipe()
    with reader, writer, pytest.raises(TypeError, match="belongs to this host"):
        xmp.launch(function, (reader,), **LOCAL)


def test_a_process_of_another_launcher_launches_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**variables, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(xmp.PlanError, match="has started this process"):
        xmp.launch(function, **LOCAL)
