"""torchrun's options that ``xmp run`` has under other names, or cannot have.

Their names and values are those of torch 2.13, torch/distributed/run.py.
"""

from __future__ import annotations

import argparse
import os
import re
import string
from typing import Any

from xmp._os import log
from xmp._words.errors import PlanError

from . import _hosts

__all__ = ["PREFIX", "WITH_VARIABLES", "abbreviate", "add", "translate"]

_OF_HOSTS = ("nnodes", "node_rank", "master_addr")
_OF_RENDEZVOUS = ("rdzv_backend", "rdzv_endpoint", "rdzv_conf")
_REFUSED = {
    "local-addr": "the hosts meet at --master-addr: leave it out",
    "event-log-handler": "give --events FILE",
    "role": "all replicas have the role `default`: leave it out",
    "duplicate-stdout-filters": "give --log-dir FOLDER and filter its files",
    "duplicate-stderr-filters": "give --log-dir FOLDER and filter its files",
    "logs-specs": "give --log-dir FOLDER",
    "numa-binding": "give --bind numa",
    "signals-to-handle": "xmp passes on SIGINT and SIGTERM: leave it out",
    "shutdown-timeout": "give --grace SECONDS",
    "virtual-local-rank": "every replica sees all devices of the launch, and LOCAL_RANK is its own",
}
"""What to do instead."""
PREFIX = "PET_"
WITH_VARIABLES = (
    *("nproc_per_node", "max_restarts", "standalone", "tee", "redirects", "local_ranks_filter"),
    *("log_dir", "module", "no_python", "rdzv_id", "master_port", *_OF_HOSTS, *_OF_RENDEZVOUS),
    *("monitor_interval", "run_path"),
)
"""The options that torchrun takes from variables too, as in PET_NPROC_PER_NODE=4."""
_FLAGS = ("virtual-local-rank",)
_WITHOUT_EFFECT = {
    "monitor_interval": "xmp hears of a replica's end at once, and does not poll",
    "run_path": "every replica runs the script in its own interpreter",
}
_STREAMS = re.compile(r"[0-3]|\d+:[0-3](,\d+:[0-3])*")
_FLAG: dict[str, Any] = {"action": "store_true"}
_SECONDS: dict[str, Any] = {"type": float, "metavar": "SECONDS"}
_ALL = -1  # stands for the local ranks that are not named
_PREFIX = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the words that mean something here, and those that are refused by name."""
    group = parser.add_argument_group("torchrun's options")
    group.add_argument("--standalone", action="store_true", help="launch on this host alone")
    streams = "1 (output), 2 (errors), 3 (both), or by local rank, as in 0:3,1:2"
    group.add_argument(
        "-t", "--tee", metavar="STREAMS",
        help=f"write these to --log-dir, and show them with --prefix: {streams}",
    )  # fmt: skip
    group.add_argument(
        "-r", "--redirects", metavar="STREAMS",
        help="write these to --log-dir, and do not show them, except what --tee shows",
    )  # fmt: skip
    for name, how in (("monitor-interval", _SECONDS), ("run-path", _FLAG)):
        names = dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}"))
        group.add_argument(*names, help="accepted, and without effect", **how)
    group.add_argument(
        "--local-ranks-filter", "--local_ranks_filter", metavar="RANKS",
        help="whose output is shown, by local rank",
    )  # fmt: skip
    group.add_argument("--rdzv-id", "--rdzv_id", metavar="ID", help="TORCHELASTIC_RUN_ID, a name")
    help_of = {
        "nnodes": "the number of hosts (default: as the scheduler's variables say, or 1)",
        "node_rank": "the index of this host, from 0",
        "master_addr": "the address of the host with --node-rank 0, for all the others",
        "master_port": "MASTER_PORT (default: a free port on one host, 29500 on several, where the "
        "launchers meet at the port 1000 above it)",
        "rdzv_backend": "c10d: each host finds out which it is (or static, with --node-rank)",
        "rdzv_endpoint": "HOST:PORT, an address of one of the hosts, which is host 0 then",
        "rdzv_conf": "accepted, and without effect, on one host; refused on several",
    }
    for name, text in help_of.items():
        spellings = dict.fromkeys((f"--{name.replace('_', '-')}", f"--{name}"))
        kind = int if name == "master_port" else str
        group.add_argument(*spellings, type=kind, metavar="VALUE", help=text)
    for name in _REFUSED:
        names = dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}"))
        nargs: Any = 0 if name in _FLAGS else None
        hidden: dict[str, Any] = {"dest": argparse.SUPPRESS, "help": argparse.SUPPRESS}
        group.add_argument(*names, action=_Refused, nargs=nargs, **hidden)


class _Refused(argparse.Action):
    def __call__(self, parser: Any, _: Any, __: Any, option_string: str | None = None) -> None:
        name = (option_string or "").lstrip("-").replace("_", "-")
        parser.error(f"{option_string} is torchrun's: {_REFUSED[name]}")


def abbreviate(parser: argparse.ArgumentParser) -> None:
    """Take these options abbreviated too, as torchrun's parser does; xmp's own count in full."""
    names = (*WITH_VARIABLES, *_REFUSED, "start_method")
    spelled = {f"--{n.replace(*each)}" for n in names for each in (("_", "-"), ("-", "_"))}
    usual: Any = parser._get_option_tuples

    def option_tuples(text: str) -> list[Any]:
        found = usual(text)
        theirs = [each for each in found if each[1] in spelled]
        # One that fits both spellings of an option is ambiguous to torchrun, too.
        return found if text[:2] != "--" else theirs if len(theirs) == 1 else []

    parser._get_option_tuples = option_tuples  # type: ignore[method-assign, assignment]


def translate(options: argparse.Namespace) -> None:
    """Write what torchrun's words mean into the options of xmp. Raises PlanError."""
    _refuse_rendezvous(options)
    _write_variables(options)
    _say_without_effect(options)
    tee, redirects = (_streams(options, name) for name in ("tee", "redirects"))
    options.streams = _together(tee, redirects)
    if any(tee.values()) and options.prefix is None:
        options.prefix = _prefix(os.environ.get(_PREFIX))
    if any(redirects.values()):
        _only(options, f"--redirects {options.redirects}", "show")
    if options.local_ranks_filter:
        _only(options, "--local-ranks-filter", "show")


def _say_without_effect(options: argparse.Namespace) -> None:
    for name, why in _WITHOUT_EFFECT.items():
        if getattr(options, name):
            log.say(f"xmp: --{name.replace('_', '-')} changes nothing here: {why}")
    if options.run_path:  # torchrun's help: "Takes precedence over --no-python"
        options.no_python = options.module = False


def _refuse_rendezvous(options: argparse.Namespace) -> None:
    if options.rdzv_conf is not None and _hosts.count(options) not in (None, 1):
        raise PlanError(
            f"--rdzv-conf {options.rdzv_conf}: leave it out; --start-timeout is how long the hosts "
            "wait for each other",
            code="XMP-P02",
        )


def _write_variables(options: argparse.Namespace) -> None:
    """Set the variables for what the options say of this host alone, or beside other variables."""
    if _hosts.count(options) == 1:
        os.environ["NNODES"] = "1"
    if options.master_addr is not None:
        os.environ["MASTER_ADDR"] = options.master_addr
    if options.master_port is not None:
        os.environ["MASTER_PORT"] = str(options.master_port)


def _only(options: argparse.Namespace, word: str, name: str) -> None:
    given = getattr(options, name)
    if given is not None:
        raise PlanError(f"{word} and --{name} {given}: give one of them", code="XMP-P02")


def _streams(options: argparse.Namespace, name: str) -> dict[int, int]:
    """By local rank, the streams that an option names: 1 is standard output, 2 error, 3 both."""
    given = getattr(options, name) or "0"
    if not _STREAMS.fullmatch(given):
        raise PlanError(
            f"--{name} {given}: give 0, 1 (standard output), 2 (standard error) or 3 (both), or "
            "one of them for each local rank, as in 0:3,1:2",
            code="XMP-P01",
        )
    if ":" not in given:
        return {_ALL: int(given)}
    pairs = (pair.split(":") for pair in given.split(","))
    return {_ALL: 0, **{int(rank): int(streams) for rank, streams in pairs}}


def _together(tee: dict[int, int], redirects: dict[int, int]) -> tuple[tuple[int, int, int], ...]:
    """As in ``Output``: which streams have a file, and which are shown; empty without files.

    What both name has a file and is shown.
    """
    found = []
    for rank in sorted({*tee, *redirects}):
        shown, filed = (each.get(rank, each[_ALL]) for each in (tee, redirects))
        found.append((rank, filed | shown, shown | 3 & ~filed))
    return tuple(found) if any(files for _, files, _ in found) else ()


def _prefix(template: str | None) -> str:
    """Return the --prefix for torchrun's template, such as "[${role_name}${local_rank}]:"."""
    if not template:
        return "yes"
    marks = {"rank": "\0rank\1", "local_rank": "\0local_rank\1"}
    text = string.Template(template).safe_substitute(role_name="default", **marks)
    text = text.replace("{", "{{").replace("}", "}}")
    return text.replace("\0", "{").replace("\1", "}")
