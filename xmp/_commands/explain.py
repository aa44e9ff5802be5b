"""``xmp explain``: the page of advice about the code of an error, from this installation."""

from __future__ import annotations

import argparse
import importlib.resources
import re
from difflib import get_close_matches

from xmp import _explain
from xmp._explain import CODES
from xmp._words.errors import PlanError, brief

__all__ = ["page", "run"]

_TITLES = {kind.code: kind.title for kind in CODES}
_SHORTEST = 3
"""Letters of a word that is looked for in titles: shorter ones are in nearly every one."""


def run(options: argparse.Namespace) -> int:
    """Print the page of one code, or all codes with their titles."""
    if options.code is None:
        print("\n".join(f"{code}  {title}" for code, title in _TITLES.items()))
        return 0
    print(page(options.code), end="")
    return 0


def page(asked: str) -> str:
    """Return the page of a code, also of ``r04``, ``R4`` or ``[XMP-R04]``."""
    code = _spelled(asked)
    if code not in _TITLES:
        raise PlanError(_unknown(asked, code), code="XMP-P01")
    return importlib.resources.files(_explain).joinpath(f"{code}.md").read_text("utf-8")


def _spelled(asked: str) -> str:
    """Return the code as errors print it, as far as the text is one."""
    found = re.fullmatch(r"(?:XMP-?)?([A-Z])-?(\d{1,2})", asked.strip().strip("[]").upper())
    return f"XMP-{found[1]}{int(found[2]):02}" if found else asked.upper()


def _unknown(asked: str, code: str) -> str:
    none = f"no error of xmp has the code {brief(asked)}"
    if len(asked.strip()) < _SHORTEST:
        return f"{none}. Give one as the error shows it, such as R04; `xmp explain` lists all codes"
    near = get_close_matches(code, _TITLES, 3, 0.7)
    # A word of the title may be all that is remembered: `xmp explain memory`.
    near += [c for c, title in _TITLES.items() if asked.lower() in title.lower() and c not in near]
    lines = [f"{none}; `xmp explain` lists all codes"]
    if near:
        lines += ["Did you mean", *(f"  {each}  {_TITLES[each]}" for each in near)]
    return "\n".join(lines)
