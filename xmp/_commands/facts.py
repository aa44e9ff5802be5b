"""``xmp facts``: what this host is, without secrets."""

from __future__ import annotations

import argparse
import json

from xmp._os import probe
from xmp._plan import planner

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """Print the facts, as JSON or one to a line."""
    data = planner.facts_to_json(planner.reported(probe.facts()))
    if options.json:
        print(json.dumps(data, indent=1))
        return 0
    for name, value in data.items():
        print(f"{name}: {_shown(value)}")
    return 0


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "".join(f"\n  {name}={text}" for name, text in value.items())
    return str(value)
