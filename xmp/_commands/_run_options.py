"""The options of ``xmp run``: those of ``spawn``, torchrun's names for them, and variables."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from xmp._calls.options import OPTIONS
from xmp._words.errors import PlanError

from . import _torchrun_words

__all__ = ["add", "from_variables", "without_variables"]

PREFIX = "XMP_RUN_"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")
_WHAT = """Run a script once per device, with the ranks and the meeting place in its environment.

Options come before the script; what follows the script belongs to it. Each option has a variable
that sets its default, such as XMP_RUN_NPROCS=4 or XMP_RUN_MAX_RESTARTS=2."""


def add(commands: Any) -> None:
    """Add ``run`` to the commands; ``commands`` is what argparse's add_subparsers returns."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="run a script once per device, as torchrun does",
        description=_WHAT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="xmp run [options] script.py [args ...]\n"
        "       xmp run [options] -m package.module [args ...]\n"
        "       xmp run [options] --no-python program [args ...]",
    )
    _torchrun_words.abbreviate(parser)
    _add_what(parser)
    _add_options(parser)
    _torchrun_words.add(parser)
    parser.add_argument("target", metavar="script.py", help=argparse.SUPPRESS)
    arguments = parser.add_argument("args", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments.required = False
    parser.set_defaults(parser=parser)


def _add_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m", "--module", action="store_true", help="run a module, as `python -m` does"
    )
    parser.add_argument(
        "--no-python", "--no_python", action="store_true",
        help="execute a program, in place of a Python script",
    )  # fmt: skip


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each option of ``spawn`` and ``launch`` that has one."""
    for option in OPTIONS:
        flag = option.flag
        if flag is None:
            continue
        names = (*flag.names[:1], f"--{option.name.replace('_', '-')}", *flag.names[1:])
        how: dict[str, Any] = {"help": option.says}
        if flag.action == "yes_or_no":
            how["action"] = argparse.BooleanOptionalAction
        elif flag.action == "store_true":
            how["action"] = flag.action
        else:
            how |= {"metavar": flag.metavar, "type": _READERS.get(option.name, flag.type)}
            how |= {"action": flag.action} if flag.action else {}
        # torchrun takes both spellings of its options, and scripts use either.
        parser.add_argument(*_spellings(names), **how)


def _spellings(names: tuple[str, ...]) -> list[str]:
    other = [f"--{name[2:].replace('-', '_')}" for name in names if "-" in name[2:]]
    return [*names, *other]


def _count(text: str) -> int | str:
    if text in ("auto", "cpu", "gpu"):
        return text
    if not text.isdecimal() or int(text) == 0:
        allowed = "a number from 1 up, auto (one per device), gpu or cpu"
        raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}")
    return int(text)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


_READERS: dict[str, Callable[[str], Any]] = {"nprocs": _count, "env": _variable}
"""What argparse makes of the text of these options, before their rows read it."""


# --- variables ------------------------------------------------------------------------------------


def from_variables(options: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Give every option that is not on the command line the value of its variable.

    Raises PlanError for a value that the option does not take, and for a variable of no option.
    """
    parser: argparse.ArgumentParser = options.parser
    given = vars(options)
    known = {f"{PREFIX}{a.dest.upper()}": a for a in parser._actions if a.dest in given}
    for positional in ("TARGET", "ARGS"):
        del known[PREFIX + positional]
    for name in environ:
        if name.startswith(PREFIX) and name not in known:
            allowed = ", ".join(sorted(known))
            text = environ[name]
            raise PlanError(
                f"{name}={text!r} is not a variable of xmp run. Allowed: {allowed}", code="XMP-P01"
            )
    torchruns = {
        f"{_torchrun_words.PREFIX}{option[2:].upper()}": action
        for option, action in parser._option_string_actions.items()
        if option[2:] in _torchrun_words.WITH_VARIABLES
    }
    for name, action in {**known, **torchruns}.items():
        if name in environ and given[action.dest] is action.default:
            setattr(options, action.dest, _value(name, environ[name], action))


def _value(name: str, text: str, action: argparse.Action) -> Any:
    try:
        if action.nargs == 0:
            return _truth(text)
        convert: Any = action.type or str
        if isinstance(action, argparse._AppendAction):
            return [convert(part) for part in shlex.split(text)]
        return convert(text)
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise PlanError(f"{name}={text!r}: {error}", code="XMP-P01") from None


def _truth(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(f"give one of {', '.join((*_TRUE, *_FALSE[:-1]))}")


def without_variables() -> None:
    """Remove the variables from this process: its replicas must not take them for theirs."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        del os.environ[name]
