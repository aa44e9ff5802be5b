"""How a launch over hosts has failed, as tables of what each host has reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

import xmp
from xmp._hosts.engines.host import Host
from xmp._hosts.engines.verdict import (
    JobVerdict,
    by_name,
    host_of,
    may_mend,
    not_the_cause,
    verdict_of,
)
from xmp._processes.messages.hosts import HostOver
from xmp._processes.messages.launch import Done, LoadFailed
from xmp._processes.messages.order import Failure
from xmp._processes.report.out_of_memory import OomFinding
from xmp._rules.limits import HANG, START, Overdue
from xmp._rules.watch import CAUSE, COLLATERAL, STOPPED, UNKNOWN
from xmp._words.host_words import HostFailure

RAISED = Failure(3, 1, 8, "raised", label=CAUSE, at=2, error_type="ValueError")
WAS_STOPPED = Failure(1, 1, 7, "signal", label=STOPPED, at=1, signal_name="SIGTERM")
VICTIM = replace(RAISED, at=1, error_type="RuntimeError", message="Connection closed by peer")
LOST = HostFailure(host=1, name="10.0.0.8", kind="HostLost", text="host 1, at 10.0.0.8, is lost")
DIED = HostFailure(host=1, kind="ReplicaDied", text="rank 3 died")
ENDED = HostFailure(host=0, kind="Ended", text="the launch was ended")

Reports = Callable[[Host], None]


def host(index: int, *reports: Reports) -> Host:
    made = Host(SimpleNamespace(index=index, name=f"node-{index}", pid=40 + index))
    for report in reports:
        report(made)
    return made


def two(first: Reports, second: Reports) -> list[Host]:
    return [host(0, first), host(1, second)]


def failed(*failures: Failure, overdue: Overdue | None = None) -> Reports:
    def report(host: Host) -> None:
        stacks = {host.agent.index: f"stack of host {host.agent.index}"}
        host.done = Done(overdue, [*failures], stacks)
        host.over = HostOver("ReplicaRaised" if failures else "", "")

    return report


def over(kind: str = "", text: str = "", verdict: HostFailure | None = None) -> Reports:
    def report(host: Host) -> None:
        host.over = HostOver(kind, text, verdict=verdict)

    return report


def lost(how: str = "ended by SIGKILL", asked: bool = False) -> Reports:
    def report(host: Host) -> None:
        host.lost, host.was_asked = how, asked

    return report


def unloaded(host: Host) -> None:
    host.unloaded = LoadFailed("Traceback ...", "ModuleNotFoundError: No module named 'm'", None)


def of(hosts: list[Host], asked: bool = False, why: str = "") -> JobVerdict:
    return verdict_of(hosts, None, asked, why)


def test_all_is_well() -> None:
    assert of(two(over(), over())) == JobVerdict()


TABLE: dict[str, tuple[list[Host], str, str]] = {
    "an agent is killed": (
        two(over(verdict=LOST), lost()),
        "HostLost", "host 1 (node-1) is lost: its agent (pid 41) ended by SIGKILL",
    ),
    "an agent is killed, and no host has a verdict": (
        two(over(), lost()), "HostLost", "host 1 (node-1) is lost",
    ),
    "an agent ends because the driver has asked, others have missed it": (
        two(over(verdict=LOST), lost(asked=True)), "HostLost", "host 1 (node-1) is lost",
    ),
    "a host that is missed says itself why it left": (
        two(over(verdict=LOST), over("StartError", "no room for a process")),
        "StartError", "on host 1 (node-1): no room for a process",
    ),
    "a host that is named in its own words": (
        two(over(), over("StartError", "host 1 (node-1) has no such folder")),
        "StartError", "host 1 (node-1) has no such folder",
    ),
    "of two that cannot start, the one in the verdict": (
        two(over("StartError", "the other way round"), over("PlanError", "no GPU", verdict=DIED)),
        "PlanError", "on host 1 (node-1): no GPU",
    ),
    "a TypeError stays one": (
        two(over(), over("TypeError", "cannot pickle")), "TypeError", "on host 1 (node-1): cannot",
    ),
    "an error that only replicas have, from a host without their report": (
        two(over(), over("ReplicaRaised", "lost words")), "StartError", "on host 1 (node-1): lost",
    ),
    "what cannot be loaded is said once": (
        two(unloaded, unloaded), "StartError", "on host 0 (node-0), host 1 (node-1): ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_no_replica_is_the_reason(case: str) -> None:
    hosts, kind, text = TABLE[case]
    found = of(hosts)
    assert type(found.broken).__name__ == kind
    assert text in str(found.broken)
    assert (found.elsewhere, found.done) == (None, None)


def test_a_host_that_is_lost_beside_a_replica_that_failed_first() -> None:
    """The verdict names the replica: the agent was lost afterwards."""
    raised = replace(DIED, host=0)
    hosts = [host(0, failed(RAISED), over("ReplicaRaised", "", raised)), host(1, lost())]
    assert of(hosts).place == "node-0"


def test_only_a_link_is_lost() -> None:
    found = of(two(over(verdict=LOST), over(verdict=LOST)))
    assert found.elsewhere is not None
    assert found.elsewhere.name == "node-1"
    assert found.broken is None


def test_a_failure_whose_report_has_not_come_is_that_of_the_verdict() -> None:
    assert of(two(over(verdict=DIED), over())).elsewhere == replace(DIED, name="node-1")


@pytest.mark.parametrize(("why", "text"), [("terminate() was called",) * 2, ("", "got a signal")])
def test_the_user_ends_it_before_the_replicas_run(why: str, text: str) -> None:
    hosts = two(over(verdict=ENDED), lost(asked=True))
    found = of(hosts, asked=True, why=why)
    assert isinstance(found.broken, xmp.StartError)
    assert text in str(found.broken)
    assert found.broken.code == "XMP-R06"


def test_an_error_of_the_driver_goes_before_one_of_a_host() -> None:
    broken = xmp.StartError("the result is lost")
    assert verdict_of(two(over(), over("StartError", "x")), broken, False, "").broken is broken


def test_the_failures_of_all_hosts_are_one_report_the_first_one_first() -> None:
    memory = OomFinding()
    hosts = two(failed(VICTIM), failed(RAISED))
    hosts[1].over = HostOver("ReplicaRaised", "", memory=memory)
    found = of(hosts)
    assert found.done is not None
    assert [(each.rank, each.label) for each in found.done.failures] == [
        (3, CAUSE),
        (3, COLLATERAL),
    ]
    assert found.done.stacks == {0: "stack of host 0", 1: "stack of host 1"}
    assert (found.place, found.memory) == ("node-1", memory)


@pytest.mark.parametrize("said", [None, 0, 1])
def test_a_host_whose_replicas_xmp_has_stopped_is_never_the_cause(said: int | None) -> None:
    hosts = two(failed(WAS_STOPPED), failed(RAISED))
    verdict = None if said is None else replace(DIED, host=said)
    assert host_of(hosts, verdict) is hosts[1]


def test_what_fails_on_two_hosts_is_collateral_by_its_words_alone() -> None:
    labels = [not_the_cause(each).label for each in (RAISED, VICTIM, WAS_STOPPED)]
    assert labels == [UNKNOWN, COLLATERAL, STOPPED]


LIMIT = Overdue(HANG, 5, ranks=(0,), finished=(1,))


@pytest.mark.parametrize(
    ("other", "name", "ranks", "place"),
    [
        (failed(), HANG, (0,), "node-0"),
        (failed(overdue=replace(LIMIT, ranks=(2, 3), finished=())), HANG, (0, 2, 3), "2 hosts"),
        (failed(replace(WAS_STOPPED, rank=2)), HANG, (0, 2), "2 hosts"),
        (failed(replace(WAS_STOPPED, rank=2)), START, (0,), "node-0"),
        (failed(replace(RAISED, at=9)), HANG, (0,), "node-0"),
    ],
)
def test_a_limit_names_what_all_hosts_waited_for(
    other: Reports, name: str, ranks: tuple[int, ...], place: str
) -> None:
    found = of(two(failed(overdue=replace(LIMIT, name=name)), other))
    assert found.done is not None
    assert found.done.overdue is not None
    assert (found.done.overdue.ranks, found.place) == (ranks, place)


def test_what_is_left_on_all_hosts() -> None:
    hosts = two(over(), over())
    for each in hosts:
        each.over = HostOver("", "", leftovers=f"process {each.agent.pid} still exists")
    assert of(hosts).leftovers == "process 40 still exists\nprocess 41 still exists"


def test_a_host_that_is_lost_has_the_name_that_the_driver_knows() -> None:
    """The others know the coordinator by its address."""
    said = "host 0, the coordinator at 10.0.0.7 port 19801, is lost"
    hosts = two(over(), over())
    found = by_name(hosts, HostFailure(host=0, name="10.0.0.7", kind="HostLost", text=said))
    assert found.name == "node-0"
    assert found.text == "host 0 (node-0), the coordinator at 10.0.0.7 port 19801, is lost"
    assert by_name(hosts, found) == found
    other = HostFailure(host=-1, kind="Ended", text="the launch was ended")
    assert by_name(hosts, other) == other


@pytest.mark.parametrize(
    ("error", "mends", "expected"),
    [
        (xmp.HostLost("lost"), False, True),
        (xmp.StartError("no room"), True, True),
        (xmp.StartError("no room"), False, False),
    ],
)
def test_whether_another_attempt_may_succeed(
    error: BaseException, mends: bool, expected: bool
) -> None:
    hosts = two(over(), over())
    hosts[1].over = HostOver("StartError", "no room", mends=mends)
    known = SimpleNamespace(overdue=None, failures=[], orphaned=False)
    assert may_mend(error, hosts, known) is expected
