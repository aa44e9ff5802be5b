"""Engines: each finds hosts, starts an agent on each of them, and carries bytes to and from it.

What travels (``messages/hosts``), what an agent does (``agent``) and the driver's handle (``job``)
are the same for all engines. A new engine is one module and one row in the registry.

Tests: ``tests/engines``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from xmp import _registry
from xmp._words.errors import PlanError, brief, wrong_type

if TYPE_CHECKING:
    from xmp._calls.job import Job
    from xmp._processes import Call, Results
    from xmp._words.types import Request

    from .protocol import Engine

__all__ = [
    "checked",
    "count_of",
    "launch",
    "shutdown",
]

_GROUP = "engines"
_theirs: dict[str, Engine] = {}
"""Engines of other distributions that this process has used, by name."""


def checked(hosts: object, engine: object, runtime_env: object = None) -> tuple[Engine, Any]:
    """``engine``, ``hosts``, ``runtime_env`` of ``launch``; raises PlanError and TypeError."""
    known = _registry.names(_GROUP)
    names = ", ".join(repr(name) for name in known)
    if engine is not None and not isinstance(engine, str):
        raise wrong_type("engine", f"one of {names}, or None", engine)
    if engine is None and hosts is None:
        raise PlanError(
            'runtime_env= without engine=: Ray alone prepares hosts by it. Give engine="ray" and '
            "hosts=, or env= for variables of replicas",
            code="XMP-P02",
        )
    if engine is None:
        raise PlanError(
            f"hosts={brief(hosts)} without engine=: say what starts the function on the hosts. "
            'Allowed: engine="ray" (hosts of a Ray cluster), "local" (hosts that this machine '
            "plays, for tests). Where a scheduler starts this program on each host, give neither: "
            "the program calls xmp.spawn there",
            code="XMP-H05",
        )
    found: Engine = _found(engine, known)
    if hosts is None:
        raise PlanError(
            f"engine={engine!r} without hosts=: give the number of hosts, from 1 up", code="XMP-H05"
        )
    count = found.checked(hosts)
    return (found if runtime_env is None else found.with_runtime_env(runtime_env)), count


def _found(name: str, known: Sequence[str]) -> Engine:
    """Return the engine of this name, ours or another distribution's. Raise PlanError."""
    if name in known:
        ours: Engine = _registry.require(_GROUP, name)
        return ours
    others = _registry.foreign(_GROUP)
    if name in others:
        return _theirs.setdefault(name, others[name].load())
    allowed = (*known, *others)
    near = get_close_matches(name.lower(), allowed, 1)
    meant = f". Did you mean {near[0]!r}?" if near else ""
    raise PlanError(
        f"engine={brief(name)}: xmp has no engine of this name. Allowed: "
        f"{', '.join(map(repr, allowed))}{meant}",
        code="XMP-H05",
    )


def count_of(hosts: object, otherwise: str = "") -> int:
    """``hosts=`` as a number; PlanError, TypeError. ``otherwise``: what else is allowed."""
    try:
        count = operator.index(cast(SupportsIndex, hosts))
    except TypeError:
        count = None
    if count is None or isinstance(hosts, bool):
        raise wrong_type("hosts", f"a whole number from 1 up{otherwise}", hosts)
    if count < 1:
        raise PlanError(f"hosts={count}: give a whole number from 1 up{otherwise}", code="XMP-H05")
    return count


def launch(
    engine: Engine, hosts: Any, request: Request, call: Call, join: bool
) -> Job[Any] | Results[Any]:
    """Run the call on hosts of an engine, as ``xmp.launch`` describes it."""
    from .driver import launched

    return launched(engine, hosts, request, call, join)


def shutdown() -> None:
    """End the agents that wait for the next launch of this process."""
    for engine in (*_registry.loaded(_GROUP), *_theirs.values()):
        engine.shutdown()
