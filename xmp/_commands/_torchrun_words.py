"""torchrun's options that ``xmp run`` has under other names, or cannot have.

Their names and values are those of torch 2.13, torch/distributed/run.py.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from xmp._errors import PlanError

__all__ = ["add", "translate"]

_HOSTS = "xmp finds the other hosts by NNODES, NODE_RANK and MASTER_ADDR, or by the scheduler's own"
_REFUSED = {
    "nnodes": f"{_HOSTS} variables: set NNODES",
    "node-rank": f"{_HOSTS} variables: set NODE_RANK",
    "master-addr": f"{_HOSTS} variables: set MASTER_ADDR",
    "master-port": "xmp holds a free port itself; several hosts meet at MASTER_PORT: set that",
    "rdzv-backend": f"there is no rendezvous: {_HOSTS} variables",
    "rdzv-endpoint": f"there is no rendezvous: {_HOSTS} variables",
    "rdzv-conf": f"there is no rendezvous: {_HOSTS} variables",
    "local-addr": f"{_HOSTS} variables: set MASTER_ADDR",
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
_FLAGS = ("run-path", "virtual-local-rank")
_BOTH, _NEITHER = "3", "0"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the words that mean something here, and those that are refused by name."""
    group = parser.add_argument_group("torchrun's words")
    group.add_argument("--standalone", action="store_true", help="launch on this host alone")
    group.add_argument("-t", "--tee", help="3: files in --log-dir, and shown with --prefix")
    group.add_argument("-r", "--redirects", help="3: files in --log-dir, and nothing is shown")
    group.add_argument(
        "--local-ranks-filter", "--local_ranks_filter", metavar="RANKS",
        help="whose output is shown, by local rank",
    )  # fmt: skip
    group.add_argument("--rdzv-id", "--rdzv_id", metavar="ID", help="TORCHELASTIC_RUN_ID")
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
    if options.standalone:
        os.environ["NNODES"] = "1"
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
