"""Where replicas on another machine find the modules of the driver's program.

The folders of the driver's ``sys.path`` that may have modules of the user's come first there, where
they exist. Python's own folders and those of packages are the host's own.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import sysconfig
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["ProgramPath", "is_packages", "path_here", "program_path"]

_PACKAGES = re.compile(r"/(site|dist)-packages(/|$)|/python\d+\.zip$")


class ProgramPath(NamedTuple):
    """The folders of a driver's ``sys.path`` that may have the user's own modules."""

    first: list[str]
    """The ones before Python's own: of the script, of PYTHONPATH, and inserted by the program."""
    last: list[str]
    folder: str
    """The working folder, "" where it has been removed."""


def program_path() -> ProgramPath:
    """Return the folders of this process. Not Python's own, and no packages: hosts have theirs."""
    own = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
    try:
        folder = os.getcwd()
    except OSError:
        folder = ""
    entries = [os.path.join(folder, each) for each in sys.path]
    begin = next((i for i, each in enumerate(entries) if each.startswith(own)), len(entries))

    def users(part: list[str]) -> list[str]:
        return [each for each in part if not each.startswith(own) and not is_packages(each)]

    return ProgramPath(users(entries[:begin]), users(entries[begin:]), folder)


def path_here(driver: ProgramPath, own: Sequence[str], own_first: bool = False) -> list[str]:
    """Return ``sys.path`` of replicas here: the driver's folders that exist here, and ``own``.

    ``own``: of this process. What it has of the driver's folders keeps its place there only where
    PYTHONPATH says so.
    """
    added = {*driver.first, *driver.last, driver.folder}
    kept = {*os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    own = [each for each in own if each not in added or each in kept]
    first, last = (_here(part, driver.folder) for part in driver[:2])
    parts = (own, first, last) if own_first else (first, own, last)
    return list(dict.fromkeys(itertools.chain(*parts)))


def _here(folders: Sequence[str], driver_folder: str) -> list[str]:
    """Return those that exist here; what is in the driver's working folder, in this one's too."""
    found = []
    for each in folders:
        inside = driver_folder and (each + os.sep).startswith(driver_folder.rstrip(os.sep) + os.sep)
        moved = os.path.join(os.getcwd(), os.path.relpath(each, driver_folder)) if inside else each
        found += [os.path.normpath(place) for place in (moved, each) if os.path.isdir(place)]
    return found


def is_packages(folder: str) -> bool:
    """Return whether pip installs packages into a folder."""
    return bool(_PACKAGES.search(folder))
