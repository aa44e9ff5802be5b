"""The command line, ``xmp`` and ``python -m xmp``: one module of ``_commands`` for each word."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from . import __version__
from ._commands import _other_options, _run_options
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
    given = sys.argv[1:] if arguments is None else arguments
    if given and not given[0].startswith("-") and given[0] not in commands:
        parser.error(_unknown(given[0], commands))
    options, unknown = parser.parse_known_args(given)
    if options.word is None:
        if unknown:
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        parser.print_help()
        return 0
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
    parser = argparse.ArgumentParser(
        prog="xmp",
        description="Launch a script on every device of a host, see beforehand what a launch would "
        "do, and look at launches that run.",
        epilog="`xmp COMMAND --help` has the options of a command.",
    )
    said = f"xmp {__version__}"
    parser.add_argument("-V", "--version", action="version", version=said, help="print the version")
    commands = parser.add_subparsers(dest="word", metavar="COMMAND", title="commands")
    _run_options.add(commands)
    _other_options.add(commands, parser)
    return parser, commands.choices


def _unknown(word: str, commands: Iterable[str]) -> str:
    """Return the error for a word that is no command."""
    if word.endswith(".py"):
        return f"there is no command {word!r}. Did you mean: xmp run {word}?"
    from difflib import get_close_matches

    near = get_close_matches(word, commands, 1)
    meant = f"Did you mean: xmp {near[0]}? " if near else ""
    return f"there is no command {word!r}. {meant}Commands: {', '.join(commands)}"


if __name__ == "__main__":
    sys.exit(main())
