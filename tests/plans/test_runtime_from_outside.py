"""A runtime that another package brings is planned like xmp's own."""

from __future__ import annotations

import pytest

from tests.support.plans import given
from xmp._plan import planner, runtimes
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, Request


class Abacus(runtimes.Runtime):
    """Beads in rows: as much of a runtime as a new device needs."""

    name = "abacus"
    framework = "abacus.xmp"
    owned = ("ABACUS_ROW",)

    def configured(self, facts: HostFacts) -> str:
        return "ABACUS=on" if facts.env.get("ABACUS") == "on" else ""

    def fit(self, facts: HostFacts, request: Request, hosts: int) -> runtimes.Fit:
        return runtimes.Fit(2, (1, 2), "2 rows")

    def share(self, job: runtimes.Job, place: runtimes.Place, local: int) -> runtimes.Share:
        return runtimes.Share({"ABACUS_ROW": str(local)}, f"row:{local}")


def test_a_runtime_can_be_added_from_outside() -> None:
    runtimes.register(Abacus())
    try:
        made = planner.plan(Request(), HostFacts(env={"ABACUS": "on", "ABACUS_ROW": "9"}))
        assert (made.runtime, made.why, made.framework) == ("abacus", "ABACUS=on", "abacus.xmp")
        assert [given(made, i)["ABACUS_ROW"] for i in range(2)] == ["0", "1"]
        with pytest.raises(PlanError, match="already registered"):
            runtimes.register(Abacus())
    finally:
        runtimes.unregister("abacus")
    with pytest.raises(PlanError, match="'abacus' is not known"):
        planner.plan(Request(runtime="abacus"), HostFacts())
