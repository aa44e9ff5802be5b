"""What a launch wants of a template: modules, and everything that an import can see being equal."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from xmp._types import ForkRules, JobPlan

__all__ = ["Needs", "identity_key", "installed", "third_party"]


@dataclass(frozen=True)
class Needs:
    """See the module."""

    modules: tuple[str, ...] = ()
    """To be imported without a trial."""
    candidates: tuple[str, ...] = ()
    """Loaded in the launcher too; to be tried while idle, except those of ``barred``."""
    barred: tuple[str, ...] = ()
    """Packages that are not even to be tried."""
    import_variables: tuple[str, ...] = ()
    first_use_variables: tuple[str, ...] = ()
    rules: ForkRules = field(default_factory=ForkRules)

    @classmethod
    def of(cls, plan: JobPlan | None, wanted: Iterable[str] = ()) -> Needs:
        """From a plan, from what the user asked for, and from what this process has imported."""
        packages = {*(plan.preload if plan else ()), *wanted}
        roots = frozenset(_root(name) for name in packages)
        known, others = _by_root(third_party(), roots)
        framework = (plan.framework,) if plan and plan.framework else ()
        return cls(
            modules=tuple(dict.fromkeys([*sorted(packages), *known, *framework])),
            candidates=others,
            barred=plan.not_preloaded if plan else (),
            import_variables=plan.import_variables if plan else (),
            first_use_variables=plan.first_use_variables if plan else (),
            rules=plan.fork_rules if plan else ForkRules(),
        )

    def bars(self, name: str) -> bool:
        """Whether a template must leave this module alone."""
        return _root(name) in self.barred

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The part of an environment that an import reads."""
        return {name: value for name, value in environment.items() if self._at_import(name)}

    def _at_import(self, name: str) -> bool:
        return _matches(name, self.import_variables) and not _matches(
            name, self.first_use_variables
        )


def _root(name: str) -> str:
    return name.partition(".")[0]


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    exact, prefixes = _split(patterns)
    return name in exact or name.startswith(prefixes)


@functools.cache
def _split(patterns: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Whole names, and the prefixes that stand before a ``*``."""
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    return frozenset(pattern for pattern in patterns if not pattern.endswith("*")), prefixes


def installed(names: Iterable[str]) -> list[str]:
    """Those of the loaded modules that are neither the standard library's nor the user's own.

    The standard library's come with the others; the user's files may do anything when they are
    imported.
    """
    names = list(names)
    places = _places() if names else ()
    return [name for name in names if _installed(name, sys.modules.get(name), places)]


_known: tuple[int, tuple[str, ...]] = (-1, ())


def third_party() -> tuple[str, ...]:
    """The installed modules that are loaded here, in the order of their import."""
    global _known
    if _known[0] != len(sys.modules):
        _known = (len(sys.modules), tuple(installed(list(sys.modules))))
    return _known[1]


@functools.lru_cache(maxsize=4)
def _by_root(
    names: tuple[str, ...], roots: frozenset[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The modules of these packages, and the others."""
    inside = tuple(name for name in names if _root(name) in roots)
    return inside, tuple(name for name in names if _root(name) not in roots)


def _places() -> tuple[str, ...]:
    folders = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    site = sys.modules.get("site")
    if site is not None:
        folders |= set(site.getsitepackages()) | {site.getusersitepackages()}
    return tuple(folder + os.sep for folder in folders)


def _installed(name: str, module: Any, places: tuple[str, ...]) -> bool:
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None)
    # A module whose spec has another name is an alias, or was made by hand.
    if not isinstance(origin, str) or getattr(spec, "name", None) != name:
        return False
    return origin.startswith(places) and name.partition(".")[0] not in ("xmp", "pytest", "_pytest")


def identity_key() -> tuple[Any, ...]:
    """What no request can change in a process that is up."""
    status = _read("/proc/self/status")
    capabilities = tuple(line for line in status.splitlines() if line.startswith("Cap"))
    ids = (os.getresuid(), os.getresgid()) if hasattr(os, "getresuid") else (os.getuid(),)
    flags = (
        sys.executable,
        tuple(sys.flags),
        tuple(sys.warnoptions),
        tuple(sorted(sys._xoptions.items())),
    )
    place = (_read("/proc/self/cgroup"), *map(_namespace, ("ipc", "mnt", "net", "pid", "user")))
    return (flags, ids, tuple(os.getgroups()), capabilities, place)


def _namespace(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{name}")
    except OSError:
        return ""


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
