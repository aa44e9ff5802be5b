"""Changes of this process's environment, with few system calls, and in a fork with few pages."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

from xmp._words.types import ForkRules

from . import thread_pools

__all__ = [
    "change_environment", "encoded", "is_off", "replace_environment", "restore_environment",
    "while_loading",
]  # fmt: skip

_variables: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]


def is_off(name: str) -> bool:
    """Return whether the user has switched something off by this variable."""
    return os.environ.get(name, "").strip().lower() in ("off", "0", "no", "false")


def replace_environment(wanted: Mapping[str, str]) -> None:
    """Make ``os.environ`` equal to ``wanted`` with as few system calls as the difference needs."""
    zone = os.environ.get("TZ")
    for name in [name for name in os.environ if name not in wanted]:
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    if os.environ.get("TZ") != zone:
        time.tzset()


def encoded(changes: Iterable[tuple[str, str | None]]) -> list[tuple[bytes, bytes | None]]:
    """Return the changes as ``change_environment`` takes them; None removes a variable."""
    return [(os.fsencode(k), None if v is None else os.fsencode(v)) for k, v in changes]


def change_environment(changes: Iterable[tuple[bytes, bytes | None]]) -> None:
    """Change variables for Python and for native code.

    Meant for new forks: ``os.environ[name] = value`` touches 20 pages more.
    """
    for name, value in changes:
        if value is None:
            _variables.pop(name, None)
            os.unsetenv(name)
        else:
            _variables[name] = value
            os.putenv(name, value)
        if name == b"TZ":  # Python's time module read it at its import
            time.tzset()


def while_loading(rules: ForkRules) -> dict[str, str]:
    """Return variables to set while a call or script is loaded.

    With them each pool has one thread, and no device is touched.
    """
    return {**thread_pools.one_thread_environment(), **dict(rules.quiet)}


def restore_environment(changed: Iterable[str], wanted: Mapping[str, str]) -> None:
    """Give the changed variables the values that they have in ``wanted``."""
    change_environment(encoded((name, wanted.get(name)) for name in changed))
