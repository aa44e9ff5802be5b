"""What lines begin with in the output of a launch over hosts: a table of options, no process."""

from __future__ import annotations

from typing import Any

import pytest

from xmp._calls.options import output_of
from xmp._hosts.engines.host_output import names_apart, over_hosts
from xmp._words.types import Output, ReplicaPlan

PREFIXES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, [f"[127.0.0.{2 + rank // 2}:{rank}] " for rank in range(4)]),
    ({"prefix": None, "show": [3]}, ["[127.0.0.3:3] "]),
    ({"prefix": False}, [""] * 4),
    ({"prefix": ""}, [""] * 4),
    ({"prefix": True}, [f"[{rank}] " for rank in range(4)]),
    ({"prefix": "{host:>10}> "}, [f" 127.0.0.{2 + rank // 2}> " for rank in range(4)]),
    ({"hosts": 1}, ["", ""]),
    ({"hosts": 1, "prefix": True}, ["[0] ", "[1] "]),
]


@pytest.mark.parametrize(("options", "prefixes"), PREFIXES)
def test_lines_name_their_host(options: dict[str, Any], prefixes: list[str]) -> None:
    """Once in a launch: ``test_local_hosts.py``."""
    given = {"hosts": 2, **options}
    output = over_hosts(output_of(engine="local", **given), given["hosts"]) or Output()
    plans = [ReplicaPlan(rank, rank % 2, 1) for rank in range(2 * given["hosts"])]
    shown = [plan for plan in plans if output.shows(plan)]
    found = [output.prefix_of(plan, f"127.0.0.{2 + plan.rank // 2}") for plan in shown]
    assert found == prefixes


def test_hosts_of_one_name_get_their_index() -> None:
    assert names_apart(["a", "b", "a", "c"]) == ["a#0", "b", "a#2", "c"]
