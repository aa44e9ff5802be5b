"""The facts of kinds of hosts, in the form that ``xmp facts --json`` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from xmp._calls.spawn import public
from xmp._words.errors import PlanError, wrong_type

if TYPE_CHECKING:
    from xmp._words.types import HostFacts

__all__ = ["FOLDER", "RECORDED", "recorded_facts"]

FOLDER = Path(__file__).with_name("facts")

RECORDED: tuple[str, ...] = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))
"""The names that ``recorded_facts`` knows."""


@public
def recorded_facts(name: str) -> HostFacts:
    """Return the recorded facts of a kind of host, whatever machine this is.

    ``xmp.plan(facts=recorded_facts("kaggle-v5e-8"))`` plans for it, as ``xmp plan --facts FILE``
    does for a host on which you have run ``xmp facts --json > FILE``.

    Args:
        name: one of ``RECORDED``, such as "kaggle-v5e-8".

    Raises:
        PlanError: no facts have this name.
        TypeError: ``name`` is not a string.
    """
    if not isinstance(name, str):
        raise wrong_type("name", "a string", name)
    if name not in RECORDED:
        from difflib import get_close_matches

        near = get_close_matches(name, RECORDED, 1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        known = ", ".join(RECORDED)
        raise PlanError(
            f"no facts are recorded as {name!r}.{meant} Recorded hosts: {known}.", code="XMP-P01"
        )
    from xmp._plan import planner

    return planner.facts_from_json(json.loads((FOLDER / f"{name}.json").read_text("utf-8")))
