"""``xmp doctor``: whether a launch would work on this host, and what to do where it would not."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from xmp import _registry
from xmp._os import ports, probe
from xmp._os.probe import examination
from xmp._os.probe.findings import Finding, verdict
from xmp._plan.secrets import without_secrets
from xmp._words.types import Request

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """Print the findings; 1 if one is a problem."""
    request = Request(nprocs=options.nprocs, runtime=options.runtime)
    reach = _registry.find("hosts", "reach")
    findings = examination.examine(probe.facts(), request, ports.lease, reach=reach)
    more = (each for look in _registry.every("doctor") for each in look(options.engine))
    findings = examination.in_order([*findings, *more])
    works = all(finding.level != "problem" for finding in findings)
    if options.json:
        print(json.dumps(_as_json(findings, works), indent=1))
    else:
        for finding in findings:
            print(without_secrets(str(finding)))  # it may have another program's command line
        print(verdict(findings))
    return int(not works)


def _as_json(findings: Sequence[Finding], works: bool) -> dict[str, Any]:
    """Return what docs/guide/commands.md describes, version 1."""
    found = [
        {
            "level": finding.level,
            "text": without_secrets(finding.text),
            "advice": without_secrets(finding.advice) or None,
            "code": finding.code or None,
        }
        for finding in findings
    ]
    return {"version": 1, "works": works, "verdict": verdict(findings), "findings": found}
