"""The exceptions that xmp raises. Catch ``XmpError`` for all of them, or the built-in class.

::

    Exception
    └── XmpError
        ├── PlanError           ValueError    the request does not fit this host; nothing started
        ├── PortError           RuntimeError  a port that the plan needs could not be held
        ├── StartError          RuntimeError  a process of xmp did not start
        ├── HostLost            RuntimeError  another host of the launch is gone, or has ended it
        └── ReplicaError        RuntimeError  a replica failed: its attributes say which and how
            ├── ReplicaRaised                 its function raised; ``__cause__`` is the original
            ├── ReplicaDied                   its process ended without returning
            └── ReplicaTimeout  TimeoutError  the launch took longer than a limit allows

An argument of a wrong type is a ``TypeError``.

Each error has a code, its kind of failure: its text shows it at the end of the first line, and
``xmp explain`` has a page about it. Where an error is made the code is one keyword, as in
``PlanError("…", code="XMP-P03")``; without it, it is that of the class. The table of
``xmp/_explain/__init__.py`` has a row for each.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

__all__ = [
    "HostLost", "PlanError", "PortError", "ReplicaDied", "ReplicaError", "ReplicaRaised",
    "ReplicaTimeout", "StartError", "XmpError", "brief", "code_in", "visible", "wrong_type",
]  # fmt: skip

_reprs = reprlib.Repr()
_reprs.maxstring = _reprs.maxother = _reprs.maxlong = 80


def brief(given: object) -> str:
    """Return what the user gave as errors show it: short, even if its ``__repr__`` raises."""
    try:
        return _reprs.repr(given)
    except Exception:  # reprlib asks objects inside containers, and integers of 4,300 digits
        if type(given) is int:
            return f"<a number of {given.bit_length()} bits>"
        return object.__repr__(given)


def wrong_type(name: str, allowed: str, given: object) -> TypeError:
    """Return the error for a value that is not of an allowed type."""
    return TypeError(f"{name} must be {allowed}, not {type(given).__name__}: {brief(given)}")


def visible(text: str) -> str:
    """Return a text for a terminal: what would act on it is escaped, but for the ends of lines."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def code_in(text: str) -> str:
    """Return the code that the text of an error shows; "" without one.

    Errors of other processes and hosts arrive as texts, and errors quote each other.
    """
    first = text.partition("\n")[0]
    shown = _shown(first[-8:-1])
    return shown[2:-1] if shown and first.endswith(shown) else ""


def _shown(code: object) -> str:
    """Return what a first line ends with; "" for what is no code, as a subclass may have it."""
    if not isinstance(code, str) or len(code) != 7 or not code.isascii():
        return ""
    known = code.startswith("XMP-") and code[4].isupper() and code[5:].isdigit()
    return f" [{code}]" if known else ""


class _PathLike(Protocol):
    def __fspath__(self) -> str: ...


class XmpError(Exception):
    """Base class of every error that xmp itself raises."""

    code: str = "XMP-X01"
    """The kind of failure: ``xmp explain`` has a page about it. A number is never used again."""
    history: Sequence[Exception] = ()
    """With ``max_restarts``, the errors of the earlier attempts, oldest first."""
    _render_traceback_: ClassVar[Callable[[Any], list[str]]]
    """IPython calls this to show the error; the module that knows notebooks sets it."""
    _save: ClassVar[Callable[[Any, Any], None]]
    """Does what ``save`` says; set by a module that can write."""
    _about: tuple[Any, Sequence[Any]] | None = None
    """What else ``save`` writes: the plan of the launch, and where each rank was, if known."""
    _ending: str = ""
    """The last part of the message; added text is inserted before it."""

    def __init__(self, *args: object, code: str = "") -> None:
        super().__init__(*args)
        found = code or code_in(args[0] if args and isinstance(args[0], str) else "")
        if found and isinstance(type(self).code, str):  # a subclass may have another, or a property
            self.code = found

    def save(self, path: str | _PathLike) -> None:
        """Write all that is known about the failed launch into one text file, for a bug report.

        It has the whole error, where each rank was, all stacks and tracebacks, the last lines that
        the replicas wrote, the plan and the facts of this host. Secrets are hidden where their
        names or shapes tell them. Only this user may read the file.

        Args:
            path: the file; an old one is replaced.

        Raises:
            OSError: it cannot be written.
        """
        self._save(path)

    def __str__(self) -> str:
        """Return the text, with the code at the end of its first line."""
        text = super().__str__()
        first = text.partition("\n")[0]
        shown = _shown(getattr(self, "code", ""))
        return text if not first or first.endswith(shown) else first + shown + text[len(first) :]

    @property
    def _plain(self) -> str:
        """The text without the code, for other texts that quote it."""
        first, end, rest = str(self).partition("\n")
        return first.removesuffix(_shown(getattr(self, "code", ""))) + end + rest

    def _add(self, text: str, last: bool = False) -> None:
        """Add a paragraph, unless the message has it; before the last part, or as that."""
        if text and text not in str(self):
            said = self._plain.removesuffix(self._ending)
            added = f"{self._ending}\n\n{text}" if last else f"\n\n{text}{self._ending}"
            self._ending = added if last else self._ending
            self.args = (said + added, *self.args[1:])


class PlanError(XmpError, ValueError):
    """The request does not fit this host. No process was started.

    The message says what was given, what is allowed and what to do.
    """

    code = "XMP-P00"


class PortError(XmpError, RuntimeError):
    """A port that the plan needs could not be held."""

    code = "XMP-O01"
    _elsewhere = ""
    """The need's name, if this host lacks the address, cannot resolve it or has the port in use."""


class StartError(XmpError, RuntimeError):
    """A process of xmp did not start. The message names it, and the limit that it hit."""

    code = "XMP-S01"


class HostLost(XmpError, RuntimeError):
    """Another host of the launch is gone, or its launcher has ended the launch.

    Its replicas may have raised because of that; the message names the host.
    """

    code = "XMP-H01"
    host: str = ""
    """The name of that host, as far as it is known."""
    host_index: int = -1
    """Its index among the hosts of the launch."""


class ReplicaFailure(Protocol):
    """How one replica failed, as far as it is known."""

    @property
    def rank(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def pid(self) -> int: ...
    @property
    def what(self) -> str:
        """One line: what happened."""

    @property
    def kind(self) -> str:
        """ "raised", "exited", "interrupted", "signal" and the like."""

    @property
    def error_type(self) -> str:
        """The name of its exception's class; empty if it raised none."""

    @property
    def message(self) -> str:
        """The text of its exception."""

    @property
    def traceback(self) -> str:
        """The whole traceback of its exception; empty if it raised none."""

    @property
    def label(self) -> str:
        """Its part in the failure: "cause", "collateral", "stopped by xmp" or "unknown"."""

    @property
    def at(self) -> int:
        """When it raised, or when xmp noticed its end, in monotonic nanoseconds."""

    @property
    def exit_code(self) -> int | None: ...
    @property
    def signal_name(self) -> str | None: ...
    @property
    def exception(self) -> BaseException | None: ...
    @property
    def stderr(self) -> str:
        """The last lines of its standard error."""

    @property
    def stdout(self) -> str:
        """The last lines of its standard output, where xmp captures it."""

    @property
    def stacks(self) -> str:
        """What faulthandler wrote of its threads, if a signal ended it."""


class ReplicaError(XmpError, RuntimeError):
    """A replica failed, and the launch with it.

    The attributes describe the replica that failed first; of a ``ReplicaTimeout``, the first rank
    that xmp waited for. ``rank``, ``local_rank`` and ``pid`` are -1 where no replica existed yet.

    Tests of a program's own error handling can make one, as they make torch's ``ProcessException``:
    the text, the local rank, the pid (torch 2.13, torch/multiprocessing/spawn.py).
    """

    def __init__(
        self, msg: str = "", error_index: int = -1, error_pid: int = -1, *, code: str = ""
    ) -> None:
        super().__init__(msg, code=code)
        self.rank = self.local_rank = error_index
        self.pid = error_pid
        self._shows_code = bool(code) or error_index < 0

    code = "XMP-R01"
    rank: int = -1
    """Its global rank."""
    local_rank: int = -1
    """Its rank on its host."""
    host: str = ""
    """The name of its host."""
    pid: int = -1
    exit_code: int | None = None
    """The exit code of its process, or minus the number of the signal that ended it; None where
    that is not known."""
    signal_name: str | None = None
    """The signal that ended its process ("SIGKILL"), if one did."""
    failures: Sequence[ReplicaFailure] = ()
    """Every replica that failed, the cause first, the others in the order of time."""
    results: Mapping[int, Any] = {}
    """What the other replicas had already returned, by rank."""
    stacks: Mapping[int, str] = {}
    """The Python stacks of the replicas that were still alive, as text, by rank."""

    suspects: tuple[int, ...] = ()
    """After a time limit: the ranks that the others wait for, as far as that can be told. The first
    line of the text says "may" where it is not certain."""

    locals: Sequence[Mapping[str, Any]] = ()
    """The variables of the user's innermost three frames in the replica that raised, innermost
    first, by name; each frame's ``where`` says which it is. Numbers and short texts are themselves,
    arrays have their shape, all else its type. ``XMP_LOCALS=off`` sends none."""

    _shows_code: bool = True
    """False for one that a program has made as torch's: its text is what the program gave."""
    _place: int | None = None
    """The replica's index in the handle's ``processes``, where that is not its local rank."""

    def __str__(self) -> str:
        return super().__str__() if self._shows_code else str(self.args[0])

    def _repr_html_(self) -> str:
        """Return a table of what happened to each rank, as HTML for notebooks."""
        return _table(self)

    @property
    def error_index(self) -> int:
        """Its index in the handle's ``processes``, under the name of torch's ProcessException.

        That is its local rank, but its rank in a launch over several hosts (``Job``).
        """
        return self.local_rank if self._place is None else self._place

    @property
    def msg(self) -> str:
        """The text, under the name that torch's ProcessException uses."""
        return str(self)

    @property
    def error_pid(self) -> int:
        """The pid, under the name that torch's ProcessException uses."""
        return self.pid


class ReplicaRaised(ReplicaError):
    """The user's function raised in a replica.

    ``__cause__`` is the original exception, where it can be pickled and its class imported here.
    """


class ReplicaDied(ReplicaError):
    """A replica's process ended without returning from the user's function."""

    code = "XMP-R02"

    def __init__(
        self,
        msg: str = "",
        error_index: int = -1,
        error_pid: int = -1,
        exit_code: int | None = None,
        signal_name: str | None = None,
        *,
        code: str = "",
    ) -> None:
        super().__init__(msg, error_index, error_pid, code=code)
        self.exit_code, self.signal_name = exit_code, signal_name


class ReplicaTimeout(ReplicaError, TimeoutError):
    """A launch took longer than ``timeout``, ``start_timeout`` or ``hang_timeout`` allows."""

    code = "XMP-T01"


def _table(error: ReplicaError) -> str:
    """Return what happened to each rank as HTML without styles; all text of the user is escaped."""
    import html  # few programs show errors in a notebook

    def row(tag: str, cells: tuple[object, ...]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(c))}</{tag}>" for c in cells) + "</tr>"

    title = html.escape(str(error).partition("\n")[0])
    body = "".join(row("th" if each[1] == "cause" else "td", each) for each in sorted(_rows(error)))
    return (
        f"<table><caption>{title}</caption>"
        f"<thead>{row('th', ('rank', '', 'what', 'when'))}</thead><tbody>{body}</tbody></table>"
    )


def _rows(error: ReplicaError) -> Iterator[tuple[int, str, str, str]]:
    """Yield rank, label, what happened, and when, of each rank that the error knows of."""
    failed = {failure.rank for failure in error.failures}
    # The cause is the first failure; a launch that took too long has no cause.
    begin = error.failures[0].at if error.failures else 0
    for failure in error.failures:
        when = "" if failure.label == "cause" else f"{(failure.at - begin) / 1e9:+.3f} s"
        yield failure.rank, failure.label, failure.what, when
    for rank, value in error.results.items():
        if rank not in failed:
            what = "returned" if value is None else f"returned {type(value).__name__}"
            yield rank, "finished", what, ""
