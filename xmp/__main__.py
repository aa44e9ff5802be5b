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
from typing import NoReturn

from . import __version__
from ._commands import _other_options, _run_options, _unknown
from ._words.errors import XmpError, visible

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
    if wrong := _unknown.first_word(given, parser, commands):
        parser.error(wrong)
    options, unknown = parser.parse_known_args(given)
    if options.word is None:
        if unknown:
            parser.error(_unknown.arguments(unknown, parser))
        parser.print_help()
        return 0
    if unknown:
        command = commands[options.word]
        command.error(_unknown.arguments(unknown, command, options.word == "run"))
    if isinstance(sys.stdout, io.TextIOWrapper) and options.word != "run":
        sys.stdout.reconfigure(errors="backslashreplace")  # a variable may hold any bytes
    try:
        # One module for each word: `xmp plan` does not load the engine, which `xmp stacks` needs.
        status: int = importlib.import_module(f"xmp._commands.{options.word}").run(options)
    except BrokenPipeError:
        raise
    except (XmpError, OSError, ValueError) as error:
        print(f"xmp: {visible(str(error))}", file=sys.stderr)
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


class _Parser(argparse.ArgumentParser):
    """One whose errors have nothing of the user's words that acts on a terminal."""

    def error(self, message: str) -> NoReturn:
        super().error(visible(message))


def _parser() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Return the parser, and the parsers of the commands by name."""
    parser = _Parser(
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


if __name__ == "__main__":
    sys.exit(main())
