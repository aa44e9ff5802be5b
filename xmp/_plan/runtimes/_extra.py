"""``env=``: what it sets in all replicas, what in each, and what a start method cannot honour.

A forked replica has its parent's imports: a variable that an import reads must have its value
before that, in the process that imports, and so the same value for all replicas.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from xmp._words.errors import PlanError
from xmp._words.types import JobPlan, Pairs, Request

from ._base import matches
from ._variables import READERS

__all__ = ["check_read_at_import", "env_by_rank", "env_of_all"]


def env_of_all(request: Request) -> Pairs:
    """Return the variables that ``env=`` sets to the same value in all replicas."""
    entries = request.env or ((),)
    return tuple(pair for pair in entries[0] if all(pair in entry for entry in entries))


def env_by_rank(request: Request) -> tuple[str, ...]:
    """Return the names that ``env=`` does not set to the same value in all replicas, sorted."""
    common = dict(env_of_all(request))
    names = {name for entry in request.env or () for name, _ in entry}
    return tuple(sorted(names - common.keys()))


def check_read_at_import(
    plan: JobPlan, method: str, environment: Mapping[str, str], loaded: Collection[str]
) -> None:
    """Raise PlanError for a variable of ``env=`` that has no effect with this start method.

    ``environment`` and ``loaded`` are the launcher's variables and packages.
    """
    if method == "spawn":
        return
    for name in plan.env_by_rank:
        if _is_read_at_import(name, plan) and (method != "fork" or _has_read(name, loaded)):
            raise PlanError(
                f"env= gives {name} a different value on some ranks, but {name} is read at the "
                "start of Python or by an import, and forked replicas share their imports. Give "
                'one value for all, or pass start_method="spawn".'
            )
    quiet = dict(plan.fork_rules.quiet)
    for name, value in plan.env:
        if not _is_read_at_import(name, plan) or environment.get(name) == value:
            continue
        if method == "fork" and _has_read(name, loaded):
            raise PlanError(
                f'env={{{name!r}: {value!r}}} has no effect under start_method="fork": {name} is '
                "read at the start of Python or by an import, and the replicas are forks of this "
                'process, which has read it. Pass start_method="spawn" or "forkserver".'
            )
        if quiet.get(name, value) != value:
            raise PlanError(
                f"env={{{name!r}: {value!r}}}: xmp imports with {name}={quiet[name]} before it "
                'forks the replicas, and only imports read it. Pass start_method="spawn".'
            )


def _is_read_at_import(name: str, plan: JobPlan) -> bool:
    later = matches(name, plan.first_use_variables)
    return matches(name, plan.import_variables) and not later


def _has_read(name: str, loaded: Collection[str]) -> bool:
    """Return whether a process that loaded these packages has read the variable.

    A variable that belongs to none of the packages in ``READERS`` counts as read: the interpreter
    reads some.
    """
    readers = [package for patterns, package in READERS if matches(name, patterns)]
    return not readers or not set(readers).isdisjoint(loaded)
