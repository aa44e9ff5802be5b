"""The indices that hosts get by arrival, as a table of who comes, asks again and goes."""

from __future__ import annotations

import pytest

from xmp._hosts.carrier.places import Places


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
