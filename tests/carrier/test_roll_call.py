"""The roll call of a launch over several hosts: who is missing, what differs, whose index it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from xmp._hosts.carrier.roll_call import Places, RollCall, missing
from xmp._hosts.carrier.words import HostCard

CARD = HostCard(0, 4, "t1v-n-0", 2, "0.3.1", "3.11.7", "torch 2.13.0", 1)


def card(index: int, **other: Any) -> HostCard:
    return replace(CARD, index=index, name=f"t1v-n-{index}", **other)


def called(*cards: HostCard) -> RollCall:
    call = RollCall(4, attempt=0)
    for each in cards:
        assert call.came(each) is None
    return call


def test_all_hosts_have_come() -> None:
    call = called(*map(card, (2, 0, 3)))
    assert not call.complete()
    assert call.came(card(1)) is None
    assert call.complete()
    assert call.state().absent == 0


def test_the_missing_hosts_are_named() -> None:
    call = called(*map(card, (0, 3)))
    line = "hosts 1, 2 of 4 have not come; 0 (t1v-n-0), 3 (t1v-n-3) are here"
    assert missing(call.state(), 4) == line
    refusal = call.overdue(300)
    assert refusal.text.startswith(line)
    assert "300 s" in refusal.text
    assert not refusal.plan


def test_one_missing_host_is_named() -> None:
    call = called(*map(card, (0, 1, 3)))
    line = "host 2 of 4 has not come; 0 (t1v-n-0), 1 (t1v-n-1), 3 (t1v-n-3) are here"
    assert missing(call.state(), 4) == line


def test_of_many_hosts_some_are_named() -> None:
    call = RollCall(4096, attempt=0)
    for index in range(40):
        call.came(card(index, hosts=4096))
    line = missing(call.state(), 4096)
    assert line.startswith("hosts 40, 41, ")
    assert "55 and 4040 more of 4096 have not come; 0 (t1v-n-0), " in line
    assert line.endswith("15 (t1v-n-15) and 24 more are here")


def test_a_host_that_left_may_come_again() -> None:
    call = called(*map(card, range(3)))
    call.left(2)
    assert not call.complete()
    assert call.came(card(2)) is None


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (card(1, xmp="0.4.0"), "xmp is 0.3 on host 0 (t1v-n-0) and 0.4 on host 1 (t1v-n-1)"),
        (card(1, python="3.12.1"), "Python is 3.11 on host 0 (t1v-n-0) and 3.12 on host 1"),
        (card(1, framework="jax 0.10.2"), "the framework is torch 2.13.0 on host 0"),
        (card(1, replicas=4), "nprocs is 2 on host 0 (t1v-n-0) and 4 on host 1 (t1v-n-1)"),
        (card(1, max_restarts=0), "max_restarts is 1 on host 0 (t1v-n-0) and 0 on host 1"),
        (card(0), "two hosts have the index 0: t1v-n-0 and t1v-n-0"),
        (card(4), "t1v-n-4 came as host 4 of 4, but host 0 was started for a job of 4"),
        (card(1, hosts=8), "t1v-n-1 came as host 1 of 8, but host 0 was started for a job of 4"),
    ],
)
def test_hosts_that_do_not_fit_together_are_refused(other: HostCard, said: str) -> None:
    refusal = called(card(0)).came(other)
    assert refusal is not None
    assert said in refusal.text
    assert refusal.plan


def test_patch_versions_may_differ() -> None:
    assert called(card(0)).came(card(1, xmp="0.3.9", python="3.11.2")) is None


def test_a_missing_host_has_the_name_that_the_scheduler_gives_it() -> None:
    call = RollCall(2, 0, ["t1v-n-0", "t1v-n-1"])
    call.came(card(0, hosts=2))
    line = "host 1 (t1v-n-1) of 2 has not come; 0 (t1v-n-0) is here"
    assert missing(call.state(), 2) == line


@pytest.mark.parametrize(
    ("steps", "given"),
    [
        ("a b c", "1 2 3"),
        ("a b a b", "1 2 1 2"),
        ("a b c d", "1 2 3 0"),
        ("a b -a c", "1 2 1"),
        ("a b -a a:1", "1 2 1"),  # its connection broke, and it comes as who it is
        ("a b -a c a:1", "1 2 1 0"),  # another host has its index
        ("a:3 b c d", "3 1 2 0"),  # a new coordinator
        ("a:4", "0"),
        ("a b c:1 c", "1 2 0 3"),
        ("-a a", "1"),
    ],
)
def test_by_arrival(steps: str, given: str) -> None:
    places, found = Places(4), []
    for step in steps.split():
        host, _, wanted = step.lstrip("-").partition(":")
        if step.startswith("-"):
            places.left(host)
        else:
            found.append(places.give(host, int(wanted or -1)))
    assert " ".join(map(str, found)) == given


def test_indices_of_hosts_that_know_theirs_are_left_out() -> None:
    places = Places(4)
    assert [places.give(host, others=(0, 2)) for host in "abc"] == [1, 3, 0]
    assert [*places] == ["a", "b"]
