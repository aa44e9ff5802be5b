"""Where the launchers of several hosts meet: in the plan, its text and its JSON."""

from __future__ import annotations

from typing import Any

import pytest

from xmp._os import ports
from xmp._plan import planner
from xmp._words.errors import PlanError, PortError
from xmp._words.host_words import HostMeeting
from xmp._words.types import HostFacts, HostsByHand, JobPlan, PortNeed, Request, WorldByHand

MANUAL = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.9"}


def plan(env: dict[str, str], **asked: Any) -> JobPlan:
    facts = HostFacts(env=env, address="10.0.0.50", cpus=(0, 1, 2, 3))
    return planner.plan(Request(**{"runtime": "cpu", "nprocs": 2, **asked}), facts)


@pytest.mark.parametrize(
    ("port", "meets"),
    [("", 30500), ("0", 30500), ("2222", 3222), ("64535", 65535), ("64536", 63536)],
)
def test_every_host_computes_the_same_port(port: str, meets: int) -> None:
    for index in (0, 1):
        made = plan({**MANUAL, "MASTER_PORT": port, "NODE_RANK": str(index)})
        assert made.meeting == HostMeeting(index, 2, "10.0.0.9", meets)
        held = [need.port for need in made.needs if need.name == "carrier"]
        assert held == ([meets] if index == 0 else [])


def test_the_json_and_the_text_say_it() -> None:
    made = plan({**MANUAL, "MASTER_PORT": "2222"})
    found = {"index": 1, "hosts": 2, "address": "10.0.0.9", "port": 3222, "job": ""}
    assert planner.to_json(made)["meeting"] == found
    assert "meeting   the launchers of 2 hosts, at 10.0.0.9 port 3222\n" in str(made)
    alone = plan({})
    assert planner.to_json(alone)["meeting"] is None
    assert "meeting " not in str(alone)


def test_an_address_in_brackets_is_one_that_a_socket_takes() -> None:
    made = plan({**MANUAL, "MASTER_ADDR": "[fd00::9]", "NODE_RANK": "0"})
    assert made.meeting is not None
    assert made.meeting.address == "fd00::9"
    assert [n.address for n in made.needs if n.name == "carrier"] == ["fd00::9"]


@pytest.mark.parametrize(
    ("asked", "meets"),
    [
        ({"world": WorldByHand(2, 4, "10.0.0.9", 4000)}, 5000),
        ({"world": WorldByHand(2, 4, "10.0.0.9"), "store_port": 4000}, 5000),
        ({"world": HostsByHand(1, ("10.0.0.9", "10.0.0.50"), 6070)}, 7070),
    ],
)
def test_hosts_that_the_call_names(asked: dict[str, Any], meets: int) -> None:
    made = plan({}, **asked)
    assert made.meeting == HostMeeting(1, 2, "10.0.0.9", meets)


def test_a_port_that_cannot_be() -> None:
    with pytest.raises(
        PlanError, match=r"MASTER_PORT='70000' is out of range\. Allowed: 1 to 65535"
    ):
        plan({**MANUAL, "MASTER_PORT": "70000"})


def test_a_port_that_something_else_of_the_host_needs() -> None:
    with pytest.raises(PlanError, match=r"port 8500 is needed twice: for 'endpoint.0.1000', and"):
        planner.plan(
            Request(
                runtime="paddle", nprocs=1001,
                world=HostsByHand(0, ("10.0.0.9", "10.0.0.50"), 7500),
            ),
            HostFacts(address="10.0.0.9", cpus=(0, 1), frameworks={"paddle": "3.3.1"}),
        )  # fmt: skip


@pytest.mark.parametrize("name", ["carrier", "store"])
def test_a_port_that_another_program_serves_is_named_with_what_to_do(name: str) -> None:
    made = plan({**MANUAL, "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.2"})
    (planned,) = [need for need in made.needs if need.name == name]
    with ports.lease([PortNeed("other", "listen", "127.0.0.2")]) as taken:
        number = taken.ports["other"]
        with pytest.raises(PortError) as caught:
            ports.lease([PortNeed(**{**vars(planned), "port": number})])
    text = str(caught.value)
    assert f"port {number} at 127.0.0.2 for '{name}'" in text
    assert "give all hosts of this job another MASTER_PORT" in text
    if name == "carrier":
        assert "the launchers of all hosts meet there, 1000 above port 29500" in text
