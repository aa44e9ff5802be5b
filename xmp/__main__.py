"""``python -m xmp``: what xmp knows of this host and what it would do, without doing it."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from . import _planner, _ports, _probe
from ._errors import XmpError
from ._probe import doctor
from ._types import HostFacts, Request

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status: 0 done, 1 refused, 2 not understood."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.command(options)
    except (XmpError, OSError, ValueError) as error:
        print(f"xmp: {error}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="xmp", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    plan = commands.add_parser("plan", help="what would be set, per replica, and from what")
    plan.add_argument(
        "-n", "--nprocs", type=int, help="replicas on each host; all devices if absent"
    )
    plan.add_argument("--runtime", help="a runtime by name; chosen if absent")
    plan.add_argument("--devices", type=_positions, help='positions in the mask, as in "0,2"')
    plan.add_argument(
        "--facts", type=Path, action="append", metavar="FILE", help="recorded facts, one per host"
    )
    plan.add_argument("--json", action="store_true", help="machine-readable, version 1")
    plan.set_defaults(command=_plan)
    facts = commands.add_parser("facts", help="what the host says: attach it to a bug report")
    facts.add_argument("--json", action="store_true", help="machine-readable, version 1")
    facts.set_defaults(command=_facts)
    stacks = commands.add_parser("stacks", help="where every replica of a running launch is")
    pid_help = "of launcher, supervisor or replica; not needed where only one launch runs"
    stacks.add_argument("pid", type=int, nargs="?", help=pid_help)
    stacks.set_defaults(command=_stacks)
    cleaning = commands.add_parser("clean", help="end what launches of yours have left behind")
    cleaning.add_argument("--dry-run", action="store_true", help="say it, and end nothing")
    cleaning.set_defaults(command=_clean)
    health = commands.add_parser("doctor", help="would a launch work here, and what is to be done")
    health.add_argument("-n", "--nprocs", type=int, help="replicas that the launch would have")
    health.add_argument("--runtime", help="the runtime that it would have")
    health.add_argument(
        "--needs", type=_bytes, default=0, metavar="SIZE",
        help="what each replica takes for itself (its model, gradients, batches), as in 2GiB",
    )  # fmt: skip
    health.add_argument(
        "--arguments", type=_bytes, default=0, metavar="SIZE",
        help="what the replicas are handed, as in 512MiB",
    )  # fmt: skip
    health.set_defaults(command=_doctor)
    return parser


def _positions(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _bytes(text: str) -> int:
    found = re.fullmatch(r"([0-9]+\.?[0-9]*) *(?:([KMGT])(i?)(B?))?", text.strip(), re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size. Allowed: 2GiB, 512M, 1.5GB, bytes.")
    # As with `docker --memory`, a bare letter is binary: only KB, MB, ... are decimal.
    base = 1000 if found[4] and not found[3] else 1024
    return int(float(found[1]) * base ** (" KMGT".index((found[2] or " ").upper())))


def _plan(options: argparse.Namespace) -> int:
    known = [_recorded(path) for path in options.facts or ()] or [_probe.facts()]
    request = Request(nprocs=options.nprocs, runtime=options.runtime, devices=options.devices)
    plan = _planner.plan(request, known)
    print(json.dumps(_planner.to_json(plan), indent=1) if options.json else _planner.explain(plan))
    return 0


def _recorded(path: Path) -> HostFacts:
    return _planner.facts_from_json(json.loads(path.read_text(encoding="utf-8")))


def _facts(options: argparse.Namespace) -> int:
    data = _planner.facts_to_json(_planner.reported(_probe.facts()))
    if options.json:
        print(json.dumps(data, indent=1))
        return 0
    for name, value in data.items():
        print(f"{name}: {_shown(value)}")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    request = Request(nprocs=options.nprocs, runtime=options.runtime)
    load = doctor.Load(each=options.needs, arguments=options.arguments)
    findings = doctor.examine(_probe.facts(), request, _ports.lease, load=load)
    for finding in findings:
        print(finding)
    return int(any(finding.level == "problem" for finding in findings))


def _stacks(options: argparse.Namespace) -> int:
    from ._processes import outside  # the engine, which no other command needs

    for launch in outside.find(options.pid):
        print(outside.tell(launch))
    return 0


def _clean(options: argparse.Namespace) -> int:
    from ._processes import cleaning

    ended, stuck = ([], cleaning.look()) if options.dry_run else cleaning.clean()
    for holder in ended:
        print(f"ended {holder}")
    for holder in stuck:
        print(f"{'would end' if options.dry_run else 'does not end (SIGKILL was sent):'} {holder}")
    if not ended and not stuck:
        print("nothing left behind")
    return int(bool(stuck) and not options.dry_run)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "".join(f"\n  {name}={text}" for name, text in value.items())
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
