"""What each host has of Python and xmp: the same as this process, or one error says where not."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

from xmp._words.errors import PlanError

from .actor import minor

__all__ = ["own_versions", "refuse_versions"]


def own_versions() -> tuple[str, str]:
    """What hosts must have: this process's Python, as in "3.11", and its xmp."""
    import xmp

    return minor(platform.python_version()), xmp.__version__


def refuse_versions(found: Sequence[dict[str, Any]]) -> None:
    """Raise PlanError where a host has no xmp, or another xmp or Python than this process.

    ``found``: what the actors of the hosts say (``HostActor.begin``).
    """
    import xmp

    own, wrong = platform.python_version(), []
    for host in found:
        lacks = _lacks(host, own, xmp.__version__)
        if lacks:
            wrong.append(lacks)
    if wrong:
        more = len(wrong) - 1
        others = f" (and {more} more host{'s' * (more > 1)} like it)" if more else ""
        raise PlanError(f'engine="ray": {wrong[0]}{others}')


def _lacks(host: dict[str, Any], python: str, version: str) -> str:
    """What is wrong with a host, and what to do there."""
    if minor(host["python"]) != minor(python):
        return (
            f"host {host['name']} has Python {host['python']}, and this process {python}: functions"
            f" and results cannot travel between them. Start Ray there with Python {minor(python)},"
            f" with xmp in it: in the source of xmp {version}, python{minor(python)} -m pip "
            "install ."
        )
    if host["xmp"] == version:
        return ""
    has = f"has xmp {host['xmp']}" if host["xmp"] else f"cannot import xmp ({host['error']})"
    return (
        f"host {host['name']} {has}, and this process has xmp {version}. Run there, in the source "
        f"of xmp {version}: {host['executable']} -m pip install ."
    )
