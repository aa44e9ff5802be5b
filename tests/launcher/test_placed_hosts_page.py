"""docs/guide/placed-hosts.md: its programs run on two hosts, its facts are those of the code."""

from __future__ import annotations

import re
import socket

import pytest

from tests.support.stage import ROOT, Outcome, Stage
from xmp._hosts.carrier.coordinator import FIRST_NOTICE, NEXT_NOTICES
from xmp._hosts.carrier.roll_call import RollCall, missing
from xmp._hosts.carrier.words import HostCard
from xmp._plan import clusters, planner
from xmp._plan.clusters.placed import PLACED, find
from xmp._words.types import HostFacts, Request
from xmp.testing import recorded_facts

TEXT = (ROOT / "docs/guide/placed-hosts.md").read_text()
WORDS = re.sub(r"\s+", " ", TEXT)
PROGRAMS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", TEXT, re.DOTALL))


def on_two_hosts(stage: Stage, program: str) -> list[Outcome]:
    with socket.create_server(("127.0.0.2", 0)) as free:
        port = str(free.getsockname()[1])
    common = {"NNODES": "2", "MASTER_ADDR": "127.0.0.2", "MASTER_PORT": port}
    hosts = [
        stage.start(PROGRAMS[program], env={**common, "NODE_RANK": str(index)})
        for index in range(2)
    ]
    found = [stage.outcome(host, timeout=60) for host in hosts]
    stage.gone()
    return found


@pytest.mark.hosts
def test_the_program_prints_what_the_page_shows(stage: Stage) -> None:
    [[shown]] = [re.findall(r"Host 1 of two prints\n\n```text\n(.*?)```", TEXT, re.DOTALL)]
    first, second = on_two_hosts(stage, "train.py")
    assert (second.out, second.code) == (shown, 0), second.err
    of_host_0 = shown.replace("host 1", "host 0").replace("replica 2", "replica 0")
    assert first.out == of_host_0.replace("replica 3", "replica 1")


@pytest.mark.hosts
def test_the_program_that_fails_prints_one_cause_on_both_hosts(stage: Stage) -> None:
    [shown] = re.findall(r"Both hosts print `(.*)`", TEXT)
    assert [each.out for each in on_two_hosts(stage, "failing.py")] == [f"{shown}\n"] * 2


def test_no_program_is_forgotten() -> None:
    assert {*PROGRAMS} == {"train.py", "failing.py"}
    assert TEXT.count("```python") == 2


def test_the_scripts_that_it_names_exist() -> None:
    named = re.findall(r"\]\(\.\./\.\./(scripts/clusters/\S+)\)", TEXT)
    assert {(ROOT / each).name for each in named} == {
        each.name for each in (ROOT / "scripts/clusters").iterdir()
    }


def test_its_variables_are_those_that_are_read() -> None:
    rows = TEXT.partition("| placed by |")[2].partition("\n\n")[0]
    sources = "".join(path.read_text() for path in (ROOT / "xmp/_plan/clusters").glob("*.py"))
    named = set(re.findall(r"`([A-Z_]{4,})\*?(?:=\d+)?`", rows))
    assert len(named) > 25
    # PET_MASTER_ADDR is MASTER_ADDR with a prefix.
    missing_ones = [n for n in named if n.removeprefix("PET_") not in sources]
    assert not missing_ones


def test_only_xmp_run_reads_torchruns_number_of_processes() -> None:
    """tests/commands/test_run_options.py has ``xmp run``."""
    recorded = recorded_facts("kubeflow-trainjob")
    pods = [
        HostFacts(
            env={**recorded.env, "PET_NPROC_PER_NODE": number},
            gpus={"vendor": "nvidia", "count": 2},
            frameworks=recorded.frameworks,
        )
        for number in ("auto", "3")
    ]
    plans = [planner.plan(Request(), pod) for pod in pods]
    assert [len(plan.hosts[0].replicas) for plan in plans] == [2, 2]
    assert "`xmp.spawn` does not read `PET_NPROC_PER_NODE`" in WORDS


def test_its_rows_are_in_the_order_of_precedence() -> None:
    """A host that has the variables of all rows belongs to the first one."""
    rows = TEXT.partition("| placed by |")[2].partition("\n\n")[0].splitlines()[2:]
    order = [row.split("|")[1].strip() for row in rows]
    names = {
        "torchrun": "placed.find_torchrun", "hand": "manual.find", "LSF, jsrun": "LSF's jsrun",
        "Open MPI": "Open MPI", "Intel MPI, MPICH": "MPI", "LSF, blaunch": "lsf.find",
        "Slurm": "slurm.find", "Kubeflow": "kubernetes.find_kubeflow",
        "Indexed Job": "kubernetes.find_indexed",
    }  # fmt: skip
    finders: list[str] = []
    for each in clusters.GENERAL[:-1]:  # the last one is for other distributions
        name = f"{each.__module__.rpartition('.')[2]}.{each.__name__}"  # type: ignore[attr-defined]
        finders += [row.name for row in PLACED] if each is find else [name]
    listed = [names.get(name, name) for name in order[:-1]]
    assert listed == finders, 'docs/guide/placed-hosts.md, the table "placed by": rows and order'


@pytest.mark.parametrize(
    ("env", "runtime", "store", "carrier"),
    [
        ({}, "cpu", 29500, 30500),
        ({"MASTER_PORT": "5000"}, "cpu", 5000, 6000),
        ({"MASTER_PORT": "64600"}, "cpu", 64600, 63600),
        ({}, "jax", 8482, 30500),
        ({"MASTER_PORT": "5000"}, "jax", 5000, 6000),
    ],
)
def test_its_ports_are_those_of_the_plan(
    env: dict[str, str], runtime: str, store: int, carrier: int
) -> None:
    by_hand = {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "10.0.0.5", **env}
    facts = HostFacts(env=by_hand, frameworks={"jax": "0.10.2", "torch": "2.13.0"})
    needs = {need.name: need for need in planner.plan(Request(runtime=runtime), facts).needs}
    assert needs.pop("carrier").port == carrier
    [other] = needs.values()
    assert other.port == store
    assert str(store if not env else 29500) in TEXT
    assert str(carrier if not env else 30500) in TEXT


def test_its_messages_are_those_of_the_roll_call() -> None:
    call = RollCall(4, 0)
    for index in range(2):
        call.came(HostCard(index=index, hosts=4, name=f"t1v-n-{index}"))
    assert missing(call.state(), 4) in WORDS
    both = RollCall(2, 0)
    assert both.came(HostCard(index=0, hosts=2, name="node-a", replicas=2)) is None
    assert missing(both.state(), 2) in WORDS
    refused = both.came(HostCard(index=1, hosts=2, name="node-b", replicas=3))
    assert refused is not None
    assert refused.text in WORDS
    twin = both.came(HostCard(index=1, hosts=2, name="node-c", replicas=3))
    assert twin is not None
    assert twin.text.partition(". ")[0] in WORDS
    assert f"After {FIRST_NOTICE:g} s, and then each minute" in WORDS
    assert NEXT_NOTICES == 60


def test_its_line_of_xmp_plan() -> None:
    plan = planner.plan(Request(), recorded_facts("kubeflow-trainjob"))
    assert [*filter(None, TEXT.splitlines())].count(
        next(line for line in planner.explain(plan).splitlines() if line.startswith("host "))
    ) == 1
