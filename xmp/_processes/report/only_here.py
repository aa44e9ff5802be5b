"""Advice on errors of replicas that arise because they run only a part of the script, once more."""

from __future__ import annotations

import re
from collections.abc import Iterator

from xmp._payload.script import is_below_guard, main_source

__all__ = ["imported_again", "only_here", "only_on_the_class"]

_UNDEFINED = re.compile(r"name '(\w+)' is not defined.*", re.DOTALL)
_NO_ATTRIBUTE = re.compile(r"(?:type object )?'(\w+)'(?: object)? has no attribute '(\w+)'")


_TOP = re.compile(
    r'^Traceback \(most recent call last\):\n  File "(.+)", line \d+, in <module>$', re.MULTILINE
)


def imported_again(traceback: str) -> str:
    """Return advice if the script itself raised while it was imported for the replicas; else ""."""
    source, found = main_source(), _TOP.search(traceback)
    if source is None or found is None or found[1] != source.path:
        return ""
    return (
        "It was the second import of this script: replicas import it too, without what is below\n"
        '`if __name__ == "__main__":`. What can be done only once (to bind a port, to take a lock, '
        "to make\na folder) belongs below that line."
    )


def only_here(error_type: str, message: str) -> str:
    """Return advice if a replica's error comes from what only this process has; else ""."""
    if error_type == "NameError" and (found := _UNDEFINED.fullmatch(message)):
        return _below_guard(found[1])
    if error_type == "AttributeError" and (found := _NO_ATTRIBUTE.fullmatch(message)):
        return only_on_the_class(*found.groups())
    return ""


def _below_guard(name: str) -> str:
    """Return advice if the script sets the name only below its ``__main__`` guard; else ""."""
    source = main_source()
    if source is None or not is_below_guard(source.path, name):
        return ""
    return (
        f"{name} exists in this process only: replicas import {source.path} up to its first "
        'launch, without what is below `if __name__ == "__main__":`.\n'
        f"Set {name} above that line, or pass it in args."
    )


# type's own slots: a metaclass may define these names itself, and its code is the user's.
_NAME, _MRO, _VARS = (type.__dict__[n].__get__ for n in ("__name__", "__mro__", "__dict__"))


def only_on_the_class(kind: str, name: str) -> str:
    """Return advice if the class has that attribute here, set after the class was made; else "".

    An error that was sent has only the name of the class, so all classes of this name must have the
    attribute.
    """
    found = [each for each in _subclasses(object) if _NAME(each) == kind]
    if not found or not all(_has(each, name) for each in found):
        return ""
    return (
        f"{kind}.{name} exists in this process only: replicas import the class, without what "
        "setUpClass, a fixture or the program has set on it since.\n"
        f"Set {name} on the object (in setUp, for a unittest.TestCase), or pass it in args."
    )


def _has(kind: type, name: str) -> bool:
    return any(name in _VARS(base) for base in _MRO(kind))


def _subclasses(kind: type) -> Iterator[type]:
    """Yield all classes below this one."""
    seen: set[int] = set()
    waiting = [kind]
    while waiting:
        below: list[type] = type.__subclasses__(waiting.pop())
        for each in below:
            if id(each) not in seen:
                seen.add(id(each))
                waiting.append(each)
                yield each
