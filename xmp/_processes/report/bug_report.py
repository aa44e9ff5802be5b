"""``error.save(path)``: all that is known about a failed launch, in one text for a bug report.

A launch may fail in a program that runs unattended. What its processes wrote, and where they were,
is gone by the time its message is read. Secrets are hidden as in `xmp facts`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Iterator

from xmp._rules.watch import UNKNOWN
from xmp._words.errors import ReplicaError, XmpError, brief
from xmp._words.record import RankPlace, ranks

__all__ = ["save_report"]

_SHORTEST_SECRET = 6  # characters
_HISTORY = "An earlier attempt (max_restarts=)"


def save_report(error: XmpError, path: str | os.PathLike[str], xmp_version: str) -> None:
    """Write the report into a new file, or over an old one; only this user may read a new one.

    The tracebacks in it have lines of the user's code.
    """

    def private(name: str, flags: int) -> int:
        return os.open(name, flags, 0o600)

    text = _text_of(error, xmp_version)
    with open(path, "w", encoding="utf-8", errors="backslashreplace", opener=private) as file:
        file.write(text)


def _text_of(error: XmpError, xmp_version: str) -> str:
    """Return the report."""
    # Compiles patterns, which few programs need.
    from xmp._plan.secrets import HIDDEN, without_secrets

    parts = [
        part
        for title, body in _parts(error, xmp_version)
        for part in (title, "=" * len(title), body, "")
    ]
    text = without_secrets("\n".join(parts))
    for value in sorted(_secrets(error), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


def _secrets(error: XmpError) -> set[str]:
    """Return the values of variables of secrets, which an exception's text may have, too."""
    from xmp._plan.secrets import is_secret

    variables = [*os.environ.items()]
    for host in error._about[0].hosts if error._about else ():
        variables += [pair for replica in host.replicas for pair in replica.set]
    return {
        value for name, value in variables if len(value) >= _SHORTEST_SECRET and is_secret(name)
    }


def _parts(error: XmpError, xmp_version: str) -> Iterator[tuple[str, str]]:
    """Yield each section's title and text."""
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    python = ".".join(map(str, sys.version_info[:3]))
    yield f"xmp {xmp_version}, Python {python}, {when}", f"{type(error).__name__}: {error}"
    yield "The program", shlex.join([*sys.orig_argv])
    for earlier in error.history:
        yield _HISTORY, f"{type(earlier).__name__}: {earlier}"
    about = error._about
    if about and about[1]:
        yield "Where each rank was", "\n".join(map(_place, about[1]))
    if isinstance(error, ReplicaError):
        if error.results:
            yield "Had returned", ranks(error.results)
        if error.locals:
            yield f"Variables of rank {error.rank}, innermost frame first", _variables(error)
        yield from _replicas(error)
    if about:
        from xmp._plan import planner

        yield "Plan", planner.explain(about[0])
    yield "Facts of this host, now", "\n".join(_facts())


def _replicas(error: ReplicaError) -> Iterator[tuple[str, str]]:
    for failure in sorted(error.failures, key=lambda each: each.rank):
        part = failure.kind if failure.label == UNKNOWN else failure.label
        what = f"Rank {failure.rank}, pid {failure.pid}: {part}"
        stacks = "" if failure.rank in error.stacks else failure.stacks
        texts = {
            "": failure.what,
            "Traceback": failure.traceback,
            "Stacks at its end": stacks,
            "Last lines on standard error": failure.stderr,
            "Last lines on standard output": failure.stdout,
        }
        yield what, "\n\n".join(_titled(title, text) for title, text in texts.items() if text)
    alike: dict[str, list[int]] = {}
    for rank, stack in error.stacks.items():
        alike.setdefault(_without_address(stack), []).append(rank)
    for stack, group in alike.items():
        yield f"Python stacks of {ranks(group)}", stack


def _without_address(stack: str) -> str:
    """Return a stack without the addresses of threads, which differ between processes."""
    return re.sub(r"hread 0x[0-9a-f]+ ", "hread ", stack.rstrip())


def _variables(error: ReplicaError) -> str:
    lines = []
    for frame in error.locals:
        lines.append(str(getattr(frame, "where", "a frame")))
        lines += [f"  {name} = {brief(value)}" for name, value in frame.items()]
    return "\n".join(lines)


def _titled(title: str, text: str) -> str:
    return f"{title}:\n{text.rstrip()}" if title else text


def _place(place: RankPlace) -> str:
    record = place.record
    words = f"{record.operation}({record.detail})" if record.number else "no collective of xmp yet"
    if record.number:
        verb = "in" if record.inside else "has left"
        seconds = (place.at - record.since) / 1e9
        words = f"{verb} its collective {record.number}, {words} at {record.site}, {seconds:.1f} s"
    state = place.ended or place.doing or "running"
    return f"rank {place.rank}: {state}; {words}"


def _facts() -> Iterable[str]:
    """Return what `xmp facts` prints, one to a line."""
    from xmp._os import probe
    from xmp._plan import planner

    for name, value in planner.facts_to_json(planner.reported(probe.facts())).items():
        if value not in (None, "", {}, []):
            yield f"{name}: {value}"
