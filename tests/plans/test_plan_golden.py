"""Recorded facts of real kinds of hosts, and the plans made of them, compared word by word.

``python tests/plans/test_plan_golden.py`` writes the plans again; review the difference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xmp.__main__ import main
from xmp._plan import planner
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, Request
from xmp.testing import RECORDED, recorded_facts
from xmp.testing._recorded import FOLDER

PLANS = Path(__file__).parent
NAMES = RECORDED


def facts_of(name: str) -> HostFacts:
    return recorded_facts(name)


def cases_of(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((PLANS / f"{name}.plans.json").read_text())
    return cases


def outcome(name: str, request: dict[str, Any]) -> dict[str, Any]:
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in request.items()}
    try:
        made = planner.plan(Request(**given), facts_of(name))
    except PlanError as error:
        return {"request": request, "refused": str(error)}
    needs = [f"{n.how} {n.name} at {n.address} {n.port or n.documented}" for n in made.needs]
    return {"request": request, "plan": planner.to_json(made), "needs": needs}


@pytest.mark.parametrize("name", NAMES)
def test_the_plans_of_a_recorded_host(name: str) -> None:
    for case in cases_of(name):
        assert outcome(name, case["request"]) == case


@pytest.mark.parametrize("name", NAMES)
def test_the_command_plans_every_recorded_host(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--facts", str(FOLDER / f"{name}.json")]) == 0
    assert capsys.readouterr().out.startswith("runtime ")


@pytest.mark.parametrize("name", NAMES)
def test_a_report_is_enough_to_plan_again(name: str) -> None:
    facts = facts_of(name)
    assert planner.plan(Request(), planner.reported(facts)) == planner.plan(Request(), facts)


@pytest.mark.parametrize("name", NAMES)
def test_facts_survive_being_read_and_written(name: str) -> None:
    facts = facts_of(name)
    assert planner.facts_from_json(planner.facts_to_json(facts)) == facts


if __name__ == "__main__":
    for written in NAMES:
        made = [outcome(written, case["request"]) for case in cases_of(written)]
        (PLANS / f"{written}.plans.json").write_text(json.dumps(made, indent=1) + "\n")
