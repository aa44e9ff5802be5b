"""The command line, ``xmp`` and ``python -m xmp``: one module of ``_commands`` for each word."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from . import __version__
from ._commands import _run_options
from ._words.errors import XmpError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status: 0 done, 1 refused, 2 not understood.

    That of ``run`` is the script's.
    """
    try:
        try:
            return _run(arguments)
        finally:
            with suppress(AttributeError, ValueError):  # closed, or an object of the script's
                sys.stdout.flush()  # not at the end of the interpreter, which would complain
    except BrokenPipeError:
        _forget_output()
        return 128 + signal.SIGPIPE  # as a shell reports `cat` in `cat file | head -1`
    except OSError as error:
        _forget_output()
        print(f"xmp: cannot write the output: {error}", file=sys.stderr)
        return 1


def _run(arguments: Sequence[str] | None) -> int:
    parser, commands = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        commands[options.word].error(_run_options.said_of_unknown(options, unknown))
    if isinstance(sys.stdout, io.TextIOWrapper) and options.word != "run":
        sys.stdout.reconfigure(errors="backslashreplace")  # a variable may hold any bytes
    try:
        # One module for each word: `xmp plan` does not load the engine, which `xmp stacks` needs.
        status: int = importlib.import_module(f"xmp._commands.{options.word}").run(options)
    except BrokenPipeError:
        raise
    except (XmpError, OSError, ValueError) as error:
        print(f"xmp: {error}", file=sys.stderr)
        return 1
    return status


def _forget_output() -> None:
    """Let the interpreter end without another attempt to write what a stream still holds."""
    with open(os.devnull, "wb") as nothing:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with suppress(AttributeError, ValueError):  # closed, or an object of the script's
                try:
                    stream.flush()
                except OSError:
                    os.dup2(nothing.fileno(), stream.fileno())


def _parser() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Return the parser, and the parsers of the commands by name."""
    what = "Plan launches, check this host, and look at the launches that run on it."
    parser = argparse.ArgumentParser(prog="xmp", description=what)
    parser.add_argument("--version", action="version", version=f"xmp {__version__}")
    commands = parser.add_subparsers(required=True, dest="word", metavar="COMMAND")
    _run_options.add(commands)
    plan = commands.add_parser("plan", help="what each replica would get, and why")
    plan.add_argument(
        "-n", "--nprocs", type=int, help="replicas on each host (default: one per device)"
    )
    plan.add_argument("--runtime", help="a runtime by name (default: chosen)")
    plan.add_argument(
        "--devices", type=_positions, help='positions among the visible devices, as in "0,2"'
    )
    plan.add_argument(
        "--facts", type=Path, action="append", metavar="FILE", help="recorded facts, one per host"
    )
    plan.add_argument("--json", action="store_true", help="print JSON, version 1")
    facts = commands.add_parser("facts", help="what this host is: attach it to a bug report")
    facts.add_argument("--json", action="store_true", help="print JSON, version 1")
    stacks = commands.add_parser("stacks", help="where every replica of a running launch is")
    pid_help = "of launcher, supervisor or replica; not needed where only one launch runs"
    stacks.add_argument("pid", type=int, nargs="?", help=pid_help)
    cleaning = commands.add_parser("clean", help="end what launches of yours have left behind")
    cleaning.add_argument("--dry-run", action="store_true", help="print what it would end")
    health = commands.add_parser("doctor", help="whether a launch would work here, and what to do")
    health.add_argument("-n", "--nprocs", type=int, help="replicas of the launch")
    health.add_argument("--runtime", help="runtime of the launch (default: chosen)")
    health.add_argument(
        "--engine", choices=["ray"], help="connect to the Ray cluster that a launch would use"
    )
    return parser, commands.choices


def _positions(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        allowed = "positions among the visible devices, as in 0,2"
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of {allowed}") from None


if __name__ == "__main__":
    sys.exit(main())
