"""The words of the command line other than ``run``, with their options and help."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

__all__ = ["add"]

_SHELLS = ("bash", "zsh", "fish")


def add(commands: Any, whole: argparse.ArgumentParser) -> None:
    """Add them to ``commands``, what argparse's add_subparsers returns; ``whole`` has them all."""
    _add_plan(commands)
    _add_facts(commands)
    _add_doctor(commands)
    _add_stacks(commands)
    _add_clean(commands)
    _add_explain(commands)
    _add_completion(commands, whole)


def _word(commands: Any, name: str, says: str, more: str) -> argparse.ArgumentParser:
    """Add a command: ``says`` is its line in the list, ``more`` what its own help adds to that."""
    about = f"{says[0].upper()}{says[1:]}. {more}"
    parser: argparse.ArgumentParser = commands.add_parser(name, help=says, description=about)
    return parser


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON (version 1)")


def _add_plan(commands: Any) -> None:
    says = "show what each replica of a launch would get, and why"
    plan = _word(commands, "plan", says, "It starts nothing and touches no device.")
    plan.add_argument(
        "-n", "--nprocs", type=int, help="replicas on each host (default: one per device)"
    )
    plan.add_argument("--runtime", help="the runtime, such as cuda or cpu (default: xmp chooses)")
    plan.add_argument(
        "--devices",
        type=_positions,
        help='which devices: positions among the visible ones, as in "0,2" (default: all)',
    )
    plan.add_argument(
        "--facts",
        type=Path,
        action="append",
        metavar="FILE",
        help="plan for the host of this file, which `xmp facts --json` has written; repeat it for "
        "several hosts (default: this host)",
    )
    _add_json(plan)


def _add_facts(commands: Any) -> None:
    says = "print what xmp sees of this host: attach it to a bug report"
    _add_json(_word(commands, "facts", says, "Passwords, tokens and keys are masked."))


def _add_doctor(commands: Any) -> None:
    says = "check whether a launch would work here, and what to do if not"
    more = "It starts nothing. The exit status is 1 if a launch would fail."
    doctor = _word(commands, "doctor", says, more)
    doctor.add_argument(
        "-n", "--nprocs", type=int, help="replicas of the launch (default: one per device)"
    )
    doctor.add_argument("--runtime", help="runtime of the launch (default: xmp chooses)")
    doctor.add_argument(
        "--engine", choices=["ray"], help="also look at the Ray cluster that a launch would use"
    )
    _add_json(doctor)


def _add_stacks(commands: Any) -> None:
    says = "show where every replica of a running launch is"
    stacks = _word(commands, "stacks", says, "Replicas go on running. Equal stacks are shown once.")
    pid_help = (
        "process id of the launch's program, its supervisor or one of its replicas (not needed if "
        "only one launch of yours runs here)"
    )
    stacks.add_argument("pid", type=int, nargs="?", help=pid_help)
    _add_json(stacks)


def _add_clean(commands: Any) -> None:
    says = "end processes that killed launches of yours have left behind"
    clean = _word(commands, "clean", says, "Launches that run are left alone.")
    clean.add_argument("--dry-run", action="store_true", help="only print what would be ended")


def _add_explain(commands: Any) -> None:
    says = "explain an error by its code, such as XMP-R04"
    more = "The cause, what to look at, what to do. No network is needed."
    explain = _word(commands, "explain", says, more)
    explain.add_argument(
        "code", nargs="?", help="as the error shows it, or short: r04 (default: list all codes)"
    )


def _add_completion(commands: Any, whole: argparse.ArgumentParser) -> None:
    says = "print the script by which a shell completes these words"
    more = (
        'In bash: eval "$(xmp completion bash)", for example in ~/.bashrc. In zsh: write it to a '
        "file _xmp in a folder of $fpath. It needs the package shtab."
    )
    completion = _word(commands, "completion", says, more)
    completion.add_argument("shell", choices=_SHELLS, help="the shell")
    completion.set_defaults(whole=whole)


def _positions(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        allowed = "positions among the visible devices, as in 0,2"
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of {allowed}") from None
