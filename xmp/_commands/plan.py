"""``xmp plan``: what each replica would get, and from what."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NoReturn

from xmp._os import probe
from xmp._plan import planner
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, Request

__all__ = ["run"]

_LONGEST = 16 << 20
"""Bytes of a file of facts, which has a few thousand: /dev/zero has no end."""

_HOW = "what `xmp facts --json > FILE` writes is such a file"


def run(options: argparse.Namespace) -> int:
    """Print the plan for this host, or for recorded facts."""
    known = [_recorded(path) for path in options.facts or ()] or [probe.facts()]
    request = Request(nprocs=options.nprocs, runtime=options.runtime, devices=options.devices)
    plan = planner.plan(request, known)
    print(json.dumps(planner.to_json(plan), indent=1) if options.json else planner.explain(plan))
    return 0


def _recorded(path: Path) -> HostFacts:
    try:
        return planner.facts_from_json(_parsed(path))
    except ValueError as error:  # PlanError and JSONDecodeError are ValueErrors
        said = error._plain if isinstance(error, PlanError) else error
        raise PlanError(f"{path}: {said} ({_HOW})", code="XMP-P01") from None


def _parsed(path: Path) -> Any:
    with path.open("rb") as file:
        text = file.read(_LONGEST + 1)
    if len(text) > _LONGEST:
        raise ValueError(f"more than {_LONGEST >> 20} MiB are no facts of a host")
    try:
        return json.loads(text.decode(), parse_constant=_refuse)
    except RecursionError:
        raise ValueError("no JSON that can be read: it is nested too deeply") from None
    except ValueError as error:  # of the text's encoding, too, and numbers of 5,000 digits
        raise ValueError(f"no JSON that can be read: {error}") from None


def _refuse(constant: str) -> NoReturn:
    """Infinity and NaN: Python's own additions to JSON."""
    raise ValueError(f"{constant} is no JSON")
