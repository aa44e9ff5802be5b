"""``hosts=`` and ``engine=`` that cannot be: one clear error, before any process exists."""

from __future__ import annotations

import multiprocessing
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import xmp
from xmp._calls import host
from xmp._calls.options import request_of
from xmp._hosts.engines.local import LocalGroup, engine
from xmp._hosts.engines.pool import Pool
from xmp._plan import planner
from xmp._words.types import HostsByHand, Request
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
    ({"engine": None}, 'hosts=2 without engine=.*Allowed: engine="ssh"'),
    (
        {"engine": "horovod"},
        r"engine='horovod': xmp has no engine .*: 'ssh', 'slurm', 'ray', 'local' \[XMP-H05]$",
    ),
    ({"engine": "Ray"}, "engine='Ray': .*Allowed: .*'ray', 'local'. Did you mean 'ray'?"),
    ({"engine": "locl"}, "Did you mean 'local'?"),
    ({"start_method": "fork"}, 'start_method="fork" with engine='),
    ({"nprocs": 10**7}, "hosts=2, nprocs=10000000: this host can carry at most"),
    ({"nprocs": 0}, "nprocs=0: give a number from 1 up"),
    ({"runtime": "nope"}, "runtime='nope' is not known"),
    ({"show": [4]}, "there is no rank 4; this launch has the ranks 0 to 3"),
    ({"devices": [0]}, "devices="),
    ({"env": {"RANK": "1"}}, "env= sets RANK"),
    ({"events": "/no/such/folder/x"}, "cannot be opened"),
    ({"max_restarts": -1}, "max_restarts=-1"),
    ({"log_dir": "/proc/logs"}, "log_dir='/proc/logs': /proc/logs: .*can be written to"),
    ({"gather_logs": True}, "gather_logs=True without log_dir=: it brings the files"),
    (
        {"gather_logs": True, "log_dir": "x", "engine": None, "hosts": None},
        "gather_logs=True without engine=: .*Give engine= and hosts=",
    ),
]

TYPES: list[tuple[dict[str, Any], str]] = [
    ({"hosts": "4"}, "hosts must be a whole number from 1 up, not str: '4'"),
    ({"hosts": True}, "not bool: True"),
    ({"hosts": 2.0}, "not float: 2.0"),
    ({"engine": 7}, "engine must be one of 'ssh', 'slurm', 'ray', 'local', or None, not int: 7"),
    ({"engin": "local"}, "engin.*Did you mean 'engine'"),
    ({"fn": 3}, "fn must be callable"),
    ({"gather_logs": "yes"}, "gather_logs must be True or False, not str: 'yes'"),
    ({"gather_logs": 1, "engine": None, "hosts": None}, "gather_logs must be .* not int: 1"),
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
        LocalGroup(2, Pool()).refuse(plan)


def test_a_log_file_of_the_second_host_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "rank3.stderr.log").mkdir()
    with pytest.raises(xmp.PlanError, match=r"log_dir=.*rank3\.stderr\.log: Is a directory"):
        xmp.launch(function, log_dir=tmp_path, **LOCAL)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_connects_processes_of_one_host(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    lock, queue, (reader, writer) = context.Lock(), context.Queue(), context.Pipe()
    with pytest.raises(TypeError, match=r"args\[0\] \(Lock\).* connects processes of one host"):
        xmp.launch(function, (lock,), **LOCAL)
    with pytest.raises(TypeError, match=r"args\[1\] \(Queue\) cannot .* belongs to this host"):
        xmp.launch(function, (0, queue), **LOCAL)
    with reader, writer, pytest.raises(TypeError, match=r"args\[0\]\['end'\] \(Connection\)"):
        xmp.launch(function, ({"end": reader},), **LOCAL)
    queue.close()
    for end in (queue._reader, queue._writer):
        end.close()


def _request(world: HostsByHand, env: Any = None, threads: int | None = None) -> Request:
    asked = request_of(nprocs=2, runtime="cpu", env=env, threads=threads)
    return replace(asked, world=world)


@pytest.mark.parametrize(
    ("options", "variable", "expected"),
    [
        ({}, None, ["2", "2"]),
        ({"env": {}}, None, ["2", "2"]),
        ({"env": lambda rank: {"A": f"{rank}"}}, None, ["2", "2"]),
        ({"env": {"OMP_NUM_THREADS": "3"}}, None, ["3", "3"]),
        ({"env": lambda rank: {"OMP_NUM_THREADS": "5"} if rank else {}}, None, ["2", "5"]),
        ({"env": {"A": "1"}}, "7", ["7", "7"]),
        ({"env": {"A": "1"}}, "many", ["2", "2"]),
        ({"env": {"A": "1"}, "threads": 6}, None, ["6", "6"]),
    ],
    ids=str,
)
def test_hosts_share_cores_where_no_threads_are_given(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    variable: str | None,
    expected: list[str],
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    known = replace(host.host_facts(), cpus=tuple(range(8)), cpu_quota=None)
    world = HostsByHand(0, ("127.0.0.2", "127.0.0.3"))
    request = _request(world, **options)
    settled = engine.settled(request, planner.plan(request, known))
    made = planner.plan(settled, known).hosts[0].replicas
    assert [dict(each.set)["OMP_NUM_THREADS"] for each in made] == expected


def test_a_process_of_another_launcher_launches_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**variables, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(xmp.PlanError, match="has started this process"):
        xmp.launch(function, **LOCAL)
