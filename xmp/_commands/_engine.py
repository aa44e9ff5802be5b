"""``xmp run --engine ray --hosts 2``: the script on hosts of an engine, from this one process."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from xmp import _registry
from xmp._calls.options import OPTIONS
from xmp._inside.script_runs import ScriptRun
from xmp._words.errors import PlanError

from . import _run_target

if TYPE_CHECKING:
    from xmp._processes import Call
    from xmp._words.types import Request

__all__ = ["Chosen", "chosen", "with_text"]

_OF_PLACED_HOSTS = ("nnodes", "node_rank", "master_addr", "master_port", "standalone")
_OF_RENDEZVOUS = ("rdzv_backend", "rdzv_endpoint", "rdzv_conf")
_PREPARED = tuple(row.name for row in OPTIONS if row.group == "prepared")
_NODE_ID = re.compile(r"[0-9a-f]{56}")
"""Of Ray 2.60: 28 random bytes, as `ray list nodes` prints them."""


class Chosen(NamedTuple):
    """An engine, and what ``--hosts`` asks it for."""

    engine: Any
    hosts: Any

    def launch(self, request: Request, call: Call) -> None:
        """Run the call on the hosts; raises as ``xmp.launch`` does. No agent waits afterwards."""
        engines = _registry.require("hosts", "engines")
        try:
            engines.launch(self.engine, self.hosts, request, call, True)
        finally:
            engines.shutdown()  # before Ray's own exit handler, which would cut its threads off


def chosen(options: argparse.Namespace) -> Chosen | None:
    """Return what ``--engine`` and ``--hosts`` name; None without both. Raise PlanError."""
    _refuse_to_gather(options)
    given = [name for name in _PREPARED if getattr(options, name) is not None]
    if options.engine is None and options.hosts is None and not given:
        return None
    if options.hosts is None and options.engine is None:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise PlanError(f"{flags} without --engine: an engine prepares hosts by it", code="XMP-P02")
    if options.engine is None:
        raise PlanError(
            f"--hosts {options.hosts}: give --engine too: ssh (hosts by name), slurm (nodes of "
            "the allocation), ray (hosts of a Ray cluster) or local (hosts that this machine "
            "plays, for tests). Where you start xmp run on each host yourself, give --nnodes",
            code="XMP-H05",
        )
    _refuse(options)
    engines = _registry.require("hosts", "engines")
    try:
        prepared = {name: getattr(options, name) for name in _PREPARED}
        prepared["runtime_env"] = _runtime_env(options)
        if options.ssh_options is not None:
            prepared["ssh_options"] = " ".join(options.ssh_options)
        return Chosen(*engines.checked(_hosts(options.hosts), options.engine, prepared))
    except TypeError as error:
        raise PlanError(f"xmp run: {error}", code="XMP-P01") from None


def _refuse_to_gather(options: argparse.Namespace) -> None:
    """Raise PlanError for ``--gather-logs`` without what it needs."""
    if options.gather_logs and options.engine is None:
        raise PlanError(
            "--gather-logs without --engine: the log files of this host are in --log-dir anyway. "
            "Give --engine and --hosts, or leave it out",
            code="XMP-P02",
        )
    if options.gather_logs and options.log_dir is None:
        raise PlanError(
            "--gather-logs without --log-dir: it brings the files of --log-dir from the hosts to "
            "this machine. Give --log-dir FOLDER, or leave it out",
            code="XMP-P02",
        )


def _runtime_env(options: argparse.Namespace) -> dict[str, Any] | None:
    """Read ``--runtime-env`` as ``xmp.launch`` takes it: from JSON, or a file of JSON."""
    text: str | None = options.runtime_env
    if text is None:
        return None
    what = f"--runtime-env {text}"
    try:
        if not text.lstrip().startswith("{"):
            with open(text, encoding="utf-8") as file:
                text = file.read()
        found = json.loads(text)
    except OSError as error:
        raise PlanError(
            f"{what}: give JSON, or the path of a file with it ({error})", code="XMP-H07"
        ) from None
    except ValueError as error:
        raise PlanError(f"{what}: no JSON that can be read: {error}", code="XMP-H07") from None
    if not isinstance(found, dict):
        raise PlanError(f'{what}: give an object, as in {{"working_dir": "."}}', code="XMP-H07")
    return found


def _hosts(text: str | None) -> int | str | list[str] | None:
    """Read ``--hosts`` as ``xmp.launch`` takes it: a number, a slice, or ids of nodes."""
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
                f"start xmp run. With {engine} one command starts all, and --hosts says on which",
                code="XMP-P02",
            )
    if options.nprocs in ("cpu", "gpu"):
        raise PlanError(
            f"-n {options.nprocs} and {engine}: it counts what this host has, and the hosts of "
            "the engine may have more or less. Give a number, or leave it out: one per device",
            code="XMP-P02",
        )
    if options.local_ranks_filter:
        raise PlanError(
            f"--local-ranks-filter {options.local_ranks_filter} and {engine}: give --show and the "
            "global ranks, of all hosts",
            code="XMP-P02",
        )


def with_text(run: ScriptRun) -> ScriptRun:
    """Add the script's text, where the hosts need not have its file."""
    if run.kind != "path" or run.source is not None:
        return run
    return replace(run, source=_run_target.text_of(run.target))
