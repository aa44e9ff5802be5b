"""Where replicas meet, and what a program has said of that before the launch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from xmp._plan import planner
from xmp._words.types import HostFacts, Request


@pytest.mark.parametrize(
    ("env", "runtime", "named"),
    [
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "12355"}, "cpu", "=localhost, MASTER_PORT=1"),
        ({"MASTER_PORT": "29500"}, "cpu", "MASTER_PORT=29500"),  # the number that a plan shows
        ({"JAX_COORDINATOR_ADDRESS": "a:1"}, "jax", "JAX_COORDINATOR_ADDRESS=a:1"),
        ({"MASTER_ADDR": "user:s3cr3t@a"}, "cpu", "MASTER_ADDR=(hidden)@a"),
    ],
)
def test_where_the_program_wanted_to_meet_is_not_replaced_in_silence(
    env: dict[str, str], runtime: str, named: str
) -> None:
    facts = HostFacts(env=env, cpus=(0, 1))
    (note,) = [n for n in planner.plan(Request(runtime=runtime), facts).notes if "replaced" in n]
    assert named in note
    assert "(inherited): replicas meet at a port that xmp holds" in note
    inside = replace(facts, env={**env, "XMP_DEVICE": "cpu"})
    assert not any("replaced" in n for n in planner.plan(Request(runtime=runtime), inside).notes)


def test_a_meeting_place_that_is_used_has_no_note() -> None:
    env = {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "2222"}
    made = planner.plan(Request(runtime="cpu"), HostFacts(env=env))
    assert not any("replaced" in note for note in made.notes)
