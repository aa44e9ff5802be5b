"""What a template must have for a launch: its modules, and all that an import can depend on."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from xmp._os import proc
from xmp._processes.system.modules import third_party
from xmp._words.types import ForkRules, JobPlan

__all__ = ["TemplateKey", "identity_key"]

_NAMESPACES = ("ipc", "mnt", "net", "pid", "user")


@dataclass(frozen=True)
class TemplateKey:
    """What one launch needs of a template."""

    modules: tuple[str, ...]
    """The template imports these without a trial."""
    candidates: tuple[str, ...]
    """Also loaded in the launcher; the template tries them while idle, but for ``barred``."""
    barred: tuple[str, ...]
    """Packages that the template must not even try."""
    import_variables: tuple[str, ...]
    first_use_variables: tuple[str, ...]
    rules: ForkRules
    env: tuple[tuple[str, str], ...] = ()
    """What ``env=`` sets in all replicas: imports see it too."""
    env_by_rank: tuple[str, ...] = ()
    """Variables that ``env=`` sets in each replica: no import may depend on them."""

    @classmethod
    def of(cls, plan: JobPlan, wanted: Iterable[str] = ()) -> TemplateKey:
        """From a plan, the user's ``wanted`` packages, and what this process has imported."""
        packages = {*plan.preload, *wanted}
        known, others = _by_root(third_party(), frozenset(map(_root, packages)))
        framework = [plan.framework] if plan.framework else []
        return cls(
            modules=tuple(dict.fromkeys([*sorted(packages), *known, *framework])),
            candidates=others,
            barred=plan.not_preloaded,
            import_variables=plan.import_variables,
            first_use_variables=plan.first_use_variables,
            rules=plan.fork_rules,
            env=plan.env,
            env_by_rank=plan.env_by_rank,
        )

    def environment(self) -> dict[str, str]:
        """Return what an import of this launch sees."""
        return {**os.environ, **dict(self.env)}

    def is_set_later(self, name: str) -> bool:
        """Return whether replicas get this variable by a call, or where it is first used."""
        return _matches(name, self.first_use_variables)

    def bars(self, name: str) -> bool:
        """Return whether a template must not import this module."""
        return _root(name) in self.barred

    def variables(self, environment: Mapping[str, str]) -> set[str]:
        """Return the names of the variables in an environment that an import is known to read."""
        return {
            name
            for name in environment
            if _matches(name, self.import_variables) and not self.is_set_later(name)
        }


def _root(name: str) -> str:
    return name.partition(".")[0]


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    exact, prefixes = _split(patterns)
    return name in exact or name.startswith(prefixes)


@functools.cache
def _split(patterns: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Whole names, and the prefixes of those that end with ``*``."""
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    return frozenset(pattern for pattern in patterns if not pattern.endswith("*")), prefixes


@functools.lru_cache(maxsize=4)
def _by_root(
    names: tuple[str, ...], roots: frozenset[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the modules of these packages, and the others."""
    inside = tuple(name for name in names if _root(name) in roots)
    return inside, tuple(name for name in names if _root(name) not in roots)


def identity_key() -> tuple[Any, ...]:
    """Return what no request can change in a process that is up."""
    capabilities = tuple(item for item in proc.status().items() if item[0].startswith("Cap"))
    ids = (os.getresuid(), os.getresgid()) if hasattr(os, "getresuid") else (os.getuid(),)
    options = tuple(sys.flags), tuple(sys.warnoptions), tuple(sorted(sys._xoptions.items()))
    place = (proc.text("/proc/self/cgroup"), *map(proc.namespace, _NAMESPACES))
    return (sys.executable, options, ids, tuple(os.getgroups()), capabilities, place)
