"""What the command line says of words and options that it does not have."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping, Sequence

from xmp._words.errors import brief

__all__ = ["arguments", "first_word"]

_LONGEST = 200
"""Characters of a word that is shown as it is."""

Commands = Mapping[str, argparse.ArgumentParser]


def first_word(given: Sequence[str], parser: argparse.ArgumentParser, commands: Commands) -> str:
    """Return the error for a line that begins with no command and no option; "" if it is right."""
    word = given[0] if given else "-"
    if word in commands:
        return ""
    if word.startswith("-"):
        return "" if _is_option(word, parser) else _no_option(given, parser, commands)
    none = f"there is no command {brief(word)}"
    if word.endswith(".py"):
        script = shlex.quote(word) if len(word) <= _LONGEST else "SCRIPT"
        return f"{none}. Did you mean: xmp run {script}?"
    return f"{none}.{_meant(word, commands)} Commands: {', '.join(commands)}"


def arguments(unknown: Sequence[str], parser: argparse.ArgumentParser, runs: bool = False) -> str:
    """Return the error for arguments that a command does not have; ``runs``: it runs a script."""
    text = f"unrecognized arguments: {' '.join(map(_shown, unknown))}"
    known = [name for name in parser._option_string_actions if name.startswith("--")]
    options = (word for word in unknown if word.startswith("-"))
    near = (_near(option.partition("=")[0], known, 0.75) for option in options)
    found = next(filter(None, near), "")
    if found:
        text += f". Did you mean {found}?"
    if runs:
        of_script = f"xmp run -n 2 script.py {_shown(unknown[0])}"
        text += f"{'' if found else '.'} Options of the script come after it: {of_script}"
    return text


def _is_option(word: str, parser: argparse.ArgumentParser) -> bool:
    """Return whether the parser has it, also abbreviated, as argparse takes it."""
    known = parser._option_string_actions
    if word.startswith("--"):
        return any(option.startswith(word.partition("=")[0]) for option in known)
    return word == "-" or word[:2] in known


def _no_option(given: Sequence[str], parser: argparse.ArgumentParser, commands: Commands) -> str:
    text = arguments(given[:1], parser)
    if not text.endswith("?"):
        text += f".{_meant(given[0].lstrip('-'), commands)}"
    for word in given[1:]:
        if word in commands:
            text += f" Options of a command come after it: xmp {word} {_shown(given[0])}"
            break
    return text.removesuffix(".")


def _meant(word: str, commands: Commands) -> str:
    near = _near(word, commands)
    return f" Did you mean: xmp {near}?" if near else ""


def _near(word: str, known: Iterable[str], least: float = 0.6) -> str:
    from difflib import get_close_matches

    return next(iter(get_close_matches(word.lower(), list(known), 1, least)), "")


def _shown(word: str) -> str:
    return word if word.isprintable() and len(word) <= _LONGEST else brief(word)
