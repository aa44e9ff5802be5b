"""What is wrong with a host of the cluster, and what to do there.

It lacks a module, has another Python or xmp than this process, or has failed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
from collections.abc import Sequence
from typing import Any

from xmp._hosts.engines.missing import Missing
from xmp._hosts.engines.program_path import is_packages
from xmp._words.errors import PlanError

from .actor import minor

__all__ = ["advice", "failed_host", "first_line", "own_versions", "refuse_versions"]


def advice(missing: Missing, command: bool) -> str:
    """Return a package's pip line, or how the folder of a module of the user's gets there.

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
    """Say how the user gives it."""
    text = json.dumps(value)
    if command:
        return f"xmp run --runtime-env {shlex.quote(text)}"
    return f"xmp.launch runtime_env={text} (or ray.init, before the launch)"


def _folder_of(top: str) -> str:
    """Return the folder that an import of the module here finds it in."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    places = list(spec.submodule_search_locations or ()) or [spec.origin or ""]
    return os.path.dirname(os.path.abspath(places[0])) if spec.has_location or places[0] else ""


def _requirement(top: str) -> str:
    """Return the distribution that has the module, with its version, as pip takes it.

    "" for one that is from no package index: there its name may be anybody's.
    """
    for name in importlib.metadata.packages_distributions().get(top, ()):
        found = importlib.metadata.distribution(name)
        # PEP 610: pip writes it for what it has installed from a folder, a file or a repository.
        return "" if found.read_text("direct_url.json") else f"{name}=={found.version}"
    return ""


_ADVICE = "See `ray status` for the hosts that live, and launch again"


def failed_host(ray: Any, asked: Sequence[Any], names: Sequence[str]) -> str:
    """Name the first host without an answer; say why, and what to do.

    ``asked``: references of Ray, one for each host, in the order of ``names``.
    """
    for name, reference in zip(names, asked):
        try:
            ray.get(reference, timeout=0)
        except ray.exceptions.GetTimeoutError:
            return f"host {name} of the Ray cluster does not answer. {_ADVICE}"
        except ray.exceptions.RayError as error:
            return f"host {name} of the Ray cluster has failed: {first_line(error)}. {_ADVICE}"
    return f"a host of the Ray cluster has failed. {_ADVICE}"


def first_line(error: BaseException) -> str:
    """Return what Ray says in one line; for an exception in an actor, that one."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return f"{type(cause).__name__}: {first_line(cause)}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def own_versions() -> tuple[str, str]:
    """Return what hosts must have: this process's Python, as in "3.11", and its xmp."""
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
        raise PlanError(f'engine="ray": {wrong[0]}{others}', code="XMP-H03")


def _lacks(host: dict[str, Any], python: str, version: str) -> str:
    """Say what is wrong with a host, and what to do there."""
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
