"""Engines: each finds hosts, starts an agent on each of them, and carries bytes to and from it.

What travels (``messages/hosts``), what an agent does (``agent``) and the driver's handle (``job``)
are the same for all engines. A new engine is one module and one row in the registry.

Tests: ``tests/engines``.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
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
    "COUNT",
    "checked",
    "count_of",
    "launch",
    "shutdown",
]

_GROUP = "engines"
COUNT = "the number of hosts, from 1 up"
_theirs: dict[str, Engine] = {}
"""Engines of other distributions that this process has used, by name."""


def checked(hosts: object, engine: object, prepared: Mapping[str, Any]) -> tuple[Engine, Any]:
    """Return the engine and the hosts that ``launch`` is asked for. Raise PlanError, TypeError.

    ``prepared``: how the hosts are prepared, by the names of options; None for what is not given.
    """
    known = _registry.names(_GROUP)
    names = ", ".join(repr(name) for name in known)
    given = {name: value for name, value in prepared.items() if value is not None}
    if engine is not None and not isinstance(engine, str):
        raise wrong_type("engine", f"one of {names}, or None", engine)
    if engine is None and hosts is None:
        raise _no_engine(", ".join(f"{name}=" for name in given))
    if engine is None:
        raise PlanError(
            f"hosts={brief(hosts)} without engine=: say what starts the function on the hosts. "
            'Allowed: engine="ssh" (hosts by name), "slurm" (nodes of the allocation), "ray" '
            '(hosts of a Ray cluster), "local" (hosts that this machine plays, for tests). Where a '
            "scheduler starts this program on each host, give neither: the program calls xmp.spawn "
            "there",
            code="XMP-H05",
        )
    found: Engine = _found(engine, known)
    if hosts is None and found.needs_hosts:
        raise PlanError(f"engine={engine!r} without hosts=: give {found.wants}", code="XMP-H05")
    others = [name for name in given if name not in found.options]
    if others:
        takers = [name for name in known if others[0] in _registry.require(_GROUP, name).options]
        only = f"{' and '.join(map(repr, takers))} {'takes' if len(takers) == 1 else 'take'}"
        own = ", ".join(f"{name}=" for name in found.options) or "none"
        raise PlanError(
            f"engine={engine!r} with {others[0]}=: only {only} it. Leave it out; options of this "
            f"engine: {own}",
            code="XMP-P02",
        )
    found = found.prepared(given) if given else found
    return found, found.checked(hosts)


def _no_engine(names: str) -> PlanError:
    return PlanError(
        f"{names} without engine=: an engine prepares hosts by it. Give engine= and hosts=, or "
        "env= for variables of replicas",
        code="XMP-P02",
    )


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
