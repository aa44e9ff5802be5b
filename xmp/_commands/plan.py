"""``xmp plan``: what each replica would get, and from what."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from xmp import _planner, _probe
from xmp._types import HostFacts, Request

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """Print the plan for this host, or for recorded facts."""
    known = [_recorded(path) for path in options.facts or ()] or [_probe.facts()]
    request = Request(nprocs=options.nprocs, runtime=options.runtime, devices=options.devices)
    plan = _planner.plan(request, known)
    print(json.dumps(_planner.to_json(plan), indent=1) if options.json else _planner.explain(plan))
    return 0


def _recorded(path: Path) -> HostFacts:
    text = path.read_text(encoding="utf-8")
    try:
        return _planner.facts_from_json(json.loads(text))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} holds no JSON: {error}") from None
