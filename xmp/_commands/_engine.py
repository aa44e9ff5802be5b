"""``xmp run --engine ray --hosts 2``: the script on hosts of an engine, from this one process."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from xmp import _engines
from xmp._errors import PlanError
from xmp._script_runs import ScriptRun

if TYPE_CHECKING:
    from xmp._processes import Call
    from xmp._types import Request

__all__ = ["Chosen", "chosen", "with_text"]

_OF_PLACED_HOSTS = ("nnodes", "node_rank", "master_addr", "master_port", "standalone")
_OF_RENDEZVOUS = ("rdzv_backend", "rdzv_endpoint", "rdzv_conf")
_NODE_ID = re.compile(r"[0-9a-f]{56}")
"""Of Ray 2.60: 28 random bytes, as `ray list nodes` prints them."""


class Chosen(NamedTuple):
    """An engine, and what ``--hosts`` asks it for."""

    engine: _engines.Engine
    hosts: Any

    def launch(self, request: Request, call: Call) -> None:
        """Run the call on the hosts; raises as ``xmp.launch`` does."""
        _engines.launch(self.engine, self.hosts, request, call, True)


def chosen(options: argparse.Namespace) -> Chosen | None:
    """What ``--engine`` and ``--hosts`` name; None without both. Raises PlanError."""
    if options.engine is None and options.hosts is None:
        return None
    if options.engine is None:
        raise PlanError(
            f"--hosts {options.hosts}: give --engine too: ray (hosts of a Ray cluster) or local "
            "(hosts that this machine plays, for tests). Where you start xmp run on each host "
            "yourself, give --nnodes"
        )
    _refuse(options)
    try:
        return Chosen(*_engines.checked(_hosts(options.hosts), options.engine))
    except TypeError as error:
        raise PlanError(f"--hosts {options.hosts}: {error}") from None


def _hosts(text: str | None) -> int | str | list[str] | None:
    """``--hosts`` as ``xmp.launch`` takes it: a number, a slice, or ids of nodes."""
    if text is None:
        return None
    if re.fullmatch(r"-?[0-9]{1,18}", text.strip()):
        return int(text)
    if "," in text or _NODE_ID.fullmatch(text.strip()):
        return [each.strip() for each in text.split(",") if each.strip()]
    return text


def _refuse(options: argparse.Namespace) -> None:
    """Raise PlanError for what names other hosts, or counts what this one has."""
    engine = f"--engine {options.engine}"
    for name in (*_OF_PLACED_HOSTS, *_OF_RENDEZVOUS):
        if getattr(options, name) not in (None, False):
            raise PlanError(
                f"--{name.replace('_', '-')} and {engine}: it is for hosts on each of which you "
                f"start xmp run. With {engine} one command starts all; give --hosts N alone"
            )
    if options.nprocs in ("cpu", "gpu"):
        raise PlanError(
            f"-n {options.nprocs} and {engine}: it counts what this host has, and the hosts of "
            "the engine may have more or less. Give a number, or leave it out: one per device"
        )
    if options.local_ranks_filter:
        raise PlanError(
            f"--local-ranks-filter {options.local_ranks_filter} and {engine}: give --show and the "
            "global ranks, of all hosts"
        )


def with_text(run: ScriptRun) -> ScriptRun:
    """The run of a script whose file the hosts need not have."""
    if run.kind != "path":
        return run
    try:
        with open(run.target, "rb") as file:
            return replace(run, source=file.read(), origin=os.path.abspath(run.target))
    except OSError as error:
        raise PlanError(f"{run.target} cannot be read: {error.strerror}") from None
