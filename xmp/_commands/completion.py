"""``xmp completion``: a script for a shell, with which Tab completes xmp's words and options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from xmp._explain import CODES
from xmp._words.errors import PlanError, XmpError, brief

__all__ = ["run"]

_FILES, _FOLDERS = ("facts", "events", "target", "args"), ("log_dir",)
"""Options and arguments that are paths."""


def run(options: argparse.Namespace) -> int:
    """Print the script for the shell."""
    try:
        script = _script(options)
    except ImportError as error:
        raise PlanError(
            f"xmp completion needs the package shtab, which cannot be imported ({error}). "
            "Install it: pip install shtab"
        ) from None
    except XmpError:
        raise
    except Exception as error:  # of a package with this name, or half of one
        raise PlanError(
            f"xmp completion needs the package shtab, which does not work ({brief(error)}). "
            "Install it again: pip install --force-reinstall shtab"
        ) from None
    print(script)
    return 0


def _script(options: argparse.Namespace) -> str:
    import shtab

    if options.shell not in shtab.SUPPORTED_SHELLS:
        raise PlanError(
            f"shtab {shtab.__version__} has no completion for {options.shell}. Install a newer "
            "one: pip install --upgrade shtab"
        )
    for action in _actions(options.whole):
        _say_values(action, shtab)
    script: str = shtab.complete(options.whole, shell=options.shell)
    return script


def _actions(whole: argparse.ArgumentParser) -> Iterator[Any]:
    """Yield the options and arguments of all commands."""
    for commands in (each for each in whole._actions if isinstance(each.choices, dict)):
        for parser in dict(commands.choices or ()).values():
            yield from parser._actions


def _say_values(action: Any, shtab: Any) -> None:
    """Tell shtab what the values of an option or an argument are."""
    if action.dest == "code":
        action.choices = [kind.code for kind in CODES]
    if action.dest in _FILES or action.dest in _FOLDERS:
        action.complete = shtab.FILE if action.dest in _FILES else shtab.DIRECTORY
        action.help = action.help if action.help != argparse.SUPPRESS else ""
