"""What to do where a host of the cluster lacks a module that this process has."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shlex
from typing import Any

from xmp._hosts.engines.missing import Missing

from .surroundings import is_packages

__all__ = ["advice"]


def advice(missing: Missing, command: bool) -> str:
    """For a package its pip line, for a module of the user's how its folder reaches the hosts.

    "" where this process does not have the module either. ``command``: ``xmp run`` launches.
    """
    top = missing.module.partition(".")[0]
    folder = _folder_of(top)
    if not folder or top == "__main__":
        return ""
    what = "does not have it" if not missing.name else "has another version of it"
    if not is_packages(folder):
        return (
            f"{top} is in {folder} here, and the host {what}. Give "
            f"{_runtime_env({'working_dir': folder}, command)}: Ray copies the folder to the hosts"
        )
    line = _requirement(top)
    if not line:
        return f"{top} is in {folder} here, and the host {what}. Install it there as here"
    return (
        f"{top} is installed here, and the host {what}. Run there: pip install {line}. Or give "
        f"{_runtime_env({'pip': [line]}, command)}"
    )


def _runtime_env(value: dict[str, Any], command: bool) -> str:
    """How the user gives it."""
    text = json.dumps(value)
    if command:
        return f"xmp run --runtime-env {shlex.quote(text)}"
    return f"xmp.launch runtime_env={text} (or ray.init, before the launch)"


def _folder_of(top: str) -> str:
    """The folder that an import of the module here finds it in."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    places = list(spec.submodule_search_locations or ()) or [spec.origin or ""]
    return os.path.dirname(os.path.abspath(places[0])) if spec.has_location or places[0] else ""


def _requirement(top: str) -> str:
    """The distribution that has the module, with its version, as pip takes it.

    "" for one that is from no package index: there its name may be anybody's.
    """
    for name in importlib.metadata.packages_distributions().get(top, ()):
        found = importlib.metadata.distribution(name)
        # PEP 610: pip writes it for what it has installed from a folder, a file or a repository.
        return "" if found.read_text("direct_url.json") else f"{name}=={found.version}"
    return ""
