"""torchrun's options that ``xmp run`` has under other names, or cannot have.

Their names and values are those of torch 2.13, torch/distributed/run.py.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from xmp._errors import PlanError

from . import _hosts

__all__ = ["PREFIX", "WITH_VARIABLES", "add", "translate"]

_OF_HOSTS = ("nnodes", "node_rank", "master_addr")
_OF_RENDEZVOUS = ("rdzv_backend", "rdzv_endpoint", "rdzv_conf")
_REFUSED = {
    "local-addr": "the hosts meet at --master-addr: leave it out",
    "monitor-interval": "xmp does not poll its replicas: leave it out",
    "event-log-handler": "give --events FILE",
    "role": "all replicas have the role `default`: leave it out",
    "run-path": "that is what xmp run does: leave it out",
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
)
"""The options that torchrun takes from variables too, as in PET_NPROC_PER_NODE=4."""
_FLAGS = ("run-path", "virtual-local-rank")
_BOTH, _NEITHER = "3", "0"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the words that mean something here, and those that are refused by name."""
    group = parser.add_argument_group("torchrun's options")
    group.add_argument("--standalone", action="store_true", help="launch on this host alone")
    group.add_argument("-t", "--tee", help="3: files in --log-dir, and shown with --prefix")
    group.add_argument("-r", "--redirects", help="3: files in --log-dir, and nothing is shown")
    group.add_argument(
        "--local-ranks-filter", "--local_ranks_filter", metavar="RANKS",
        help="whose output is shown, by local rank",
    )  # fmt: skip
    group.add_argument("--rdzv-id", "--rdzv_id", metavar="ID", help="TORCHELASTIC_RUN_ID")
    help_of = {
        "nnodes": "the number of hosts (default: as the scheduler's variables say, or 1)",
        "node_rank": "the index of this host, from 0",
        "master_addr": "the address of the host with --node-rank 0, for all the others",
        "master_port": "MASTER_PORT (default: a free port on one host, 29500 on several, where the "
        "launchers meet at the port 1000 above it)",
        **dict.fromkeys(_OF_RENDEZVOUS, "accepted with one host, where nothing has to be found"),
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


def translate(options: argparse.Namespace) -> None:
    """Write what torchrun's words mean into the options of xmp.

    Raises PlanError where xmp cannot do the same: it writes both streams of all ranks, or none.
    """
    _refuse_rendezvous(options)
    _write_variables(options)
    tee, redirects = (_streams(options, name) for name in ("tee", "redirects"))
    if tee == redirects == _BOTH:
        raise PlanError("--tee 3 shows what --redirects 3 does not show: give one of them")
    if tee == _BOTH and options.prefix is None:
        options.prefix = "yes"
    if redirects == _BOTH:
        _only(options, "--redirects 3", "show")
        options.show = "none"
    if options.local_ranks_filter:
        _only(options, "--local-ranks-filter", "show")


def _refuse_rendezvous(options: argparse.Namespace) -> None:
    hosts = _hosts.count(options)
    for name in _OF_RENDEZVOUS:
        if getattr(options, name) is not None and hosts not in (None, 1):
            raise PlanError(
                f"--{name.replace('_', '-')} and --nnodes {hosts}: xmp runs no rendezvous. Give "
                "--node-rank and --master-addr on each host"
            )


def _write_variables(options: argparse.Namespace) -> None:
    """What the options say of this host alone, or beside variables that name the hosts."""
    if _hosts.count(options) == 1:
        os.environ["NNODES"] = "1"
    if options.master_addr is not None:
        os.environ["MASTER_ADDR"] = options.master_addr
    if options.master_port is not None:
        os.environ["MASTER_PORT"] = str(options.master_port)


def _only(options: argparse.Namespace, word: str, name: str) -> None:
    given = getattr(options, name)
    if given is not None:
        raise PlanError(f"{word} and --{name} {given}: give one of them")


def _streams(options: argparse.Namespace, name: str) -> str:
    given = getattr(options, name) or _NEITHER
    if given not in (_BOTH, _NEITHER):
        raise PlanError(
            f"--{name} {given}: xmp writes both streams of all ranks to --log-dir, or none. Give "
            f"--{name} 3"
        )
    if given == _BOTH and options.log_dir is None:
        raise PlanError(f"--{name} 3 writes files: give --log-dir FOLDER too")
    return str(given)
