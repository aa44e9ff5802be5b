"""Finish, before ``os._exit``, what Python's own finalisation would have finished.

A replica cannot end as a script does. Device runtimes and native threads crash or hang while an
interpreter is taken down, and to clear all modules writes into every page that it shares with the
template. Without any finalisation the last buffer of each open file is lost, with exit status 0.
So a process calls the finalisers, and frees nothing:

- It begins with ``gc.freeze``, which costs nothing: what ``gc.get_objects`` finds later it has made
  itself. That, and nothing older, it finishes: ``__del__`` (of a file: flush and close), owners
  before what they own, as in ``zip file -> file``. An order by age would close a file before the
  object that still writes to it.
- Before it forks, it writes out what its open files hold (``before_fork``): otherwise the same
  bytes come out of every fork. Its forks flush those files again, for what they write themselves,
  but neither close nor finalise them: a temporary file is deleted once, where it was made.
- What frees without ``__del__`` (C++ destructors, weak references' callbacks) does not run: there
  the crashes are.

A file in a Python object that a library's C code alone refers to is found too; in one that only a
daemon thread's frame refers to Python leaves it, and here it is finished.
"""

from __future__ import annotations

import _io
import _socket
import contextlib
import gc
import os
import stat
import sys
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from . import c_stdio, stdio

__all__ = ["before_fork", "begin", "descriptors", "finish", "write_out"]

_MOST = 100_000
"""Objects that are followed to find out who owns whom; behind them the order is that of age."""
_LEAST = 0.5
"""Seconds for a finaliser: a ``grace`` of 0 is meant for those that would go on after a failure."""
_GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_OPAQUE = (type, types.ModuleType, types.FunctionType, types.FrameType, types.CodeType)
"""They lead to everything, and own no file."""
_Reference = Callable[[], Any]

_freeze = gc.freeze
_made: dict[int, list[_Reference]] = {}
"""What a process has made before ``gc.freeze`` or a fork, by the pid of the process."""
_inherited: dict[int, _Reference] = {}
"""What the processes have made from which this one was forked, by id."""
_finished: list[Any] = []
"""Kept until ``os._exit``: Python would call ``__del__`` again of what is freed before it. Some
are for one call alone: multiprocessing's connections close their number each time."""
# What a metaclass says of these would be code of the program, in the launcher too.
_mro = type.__dict__["__mro__"].__get__
_members = type.__dict__["__dict__"].__get__


def _finaliser(kind: type) -> str:
    """Return the method that finishes objects of a type; empty if nothing has to be finished."""
    found, sqlite = "", getattr(sys.modules.get("sqlite3"), "Connection", None)
    for base in _mro(kind):
        if "__del__" in _members(base):
            found = "__del__"
        elif base is sqlite:
            found = found or "close"  # what is freed rolls back; a journal would stay behind
    # Of a socket nothing is pending, and one is the way to the supervisor.
    return "" if issubclass(kind, _socket.socket) else found


def begin() -> None:
    """Take what exists now for the parent's."""
    _freeze()
    gc.freeze = _freeze_of_the_program


def _freeze_of_the_program() -> None:
    """``gc.freeze`` hides what this process has made, which it must finish nevertheless."""
    _keep(_young())
    _freeze()


def _keep(things: Iterable[Any]) -> list[_Reference]:
    kept = [_reference(each) for each in things]
    _made.setdefault(os.getpid(), []).extend(kept)
    return kept


def _own() -> list[Any]:
    """What this process has made and still has."""
    kept = [each() for each in _made.get(os.getpid(), ())]
    return [each for each in kept if each is not None] + _young()


def _young() -> list[Any]:
    """Return what this process has made that has a finaliser, in the order of age.

    No type is kept here: its methods' globals would stay at the launcher's own end, unfinished.
    """
    everything = gc.get_objects()
    kinds = {id(type(each)): type(each) for each in everything}  # a type may have a hash of its own
    finished = {number for number, kind in kinds.items() if _finaliser(kind)}
    return [each for each in everything if id(type(each)) in finished and not _is_inherited(each)]


def _is_inherited(thing: Any) -> bool:
    known = _inherited.get(id(thing))  # gc.unfreeze() shows it again
    return known is not None and known() is thing


def _reference(thing: Any) -> _Reference:
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing


# --- files ----------------------------------------------------------------------------------------


def before_fork() -> None:
    """Write out what this process has buffered, and note what its forks must not finish."""
    _flush_log_records()
    young = _young()
    _flush(young)
    stdio.flush()
    # fflush(NULL) would wait for a stream that another thread is reading.
    c_stdio.flush(everything=threading.active_count() == 1)
    _inherited.update(zip(map(id, young), _keep(young)))


def write_out() -> list[str]:
    """Write out what the open files hold; return what could not be written."""
    return _flush([*_own(), *(each() for each in _inherited.values())]) + stdio.flush()


def descriptors() -> set[int]:
    """The descriptors of the files that this process has to finish."""
    found = set()
    for file in filter(_is_file, _own()):
        try:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                found.add(file.fileno())
        except (OSError, ValueError):
            pass  # closed, or a file in memory
    return found


def _flush_log_records() -> None:
    """Of memory handlers: their records would be in each fork."""
    handlers: Any = sys.modules.get("logging.handlers")
    if handlers is not None:
        for reference in list(handlers.logging._handlerList):
            handler = reference()
            if isinstance(handler, handlers.MemoryHandler):
                handler.flush()


def _flush(things: Iterable[Any]) -> list[str]:
    """Flush those that are files open for writing; return what is lost.

    The upper layers first: their flush only fills the buffers below.
    """
    files = _owners_first([each for each in things if _is_file(each)])
    return [line for file in files for line in _flush_one(file)]


def _flush_one(file: Any) -> list[str]:
    """Flush a file if it is open for writing; return what is lost."""
    try:
        if not file.closed and file.writable():
            file.flush()
    except (BrokenPipeError, ValueError):
        pass  # the reader has gone; it was closed or detached
    except Exception as error:  # a full disk, or whatever a file of the program's raises
        return [f"{_name(file)}: {type(error).__name__}: {error}"]
    return []


def _is_file(thing: Any) -> bool:
    return issubclass(type(thing), _io._IOBase)  # isinstance asks the object, which may be a proxy


# --- finalisers -----------------------------------------------------------------------------------


def finish(seconds: float, hangs: Callable[[str], NoReturn]) -> list[str]:
    """Finish what this process has made; return what could not be written.

    ``hangs`` is called, in a thread, with the description of a finaliser that takes longer than
    ``seconds``.
    """
    lost = stdio.flush()
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # as Python, before it clears modules
    standard = _standard_files()
    things = [each for each in _own() if id(each) not in standard]
    made_here = set(map(id, things))
    inherited = [each() for number, each in _inherited.items() if number not in made_here]
    files = [each for each in inherited if _is_file(each)]
    if not things and not files:
        c_stdio.flush(everything=True)
        return lost
    # A thread may be in the middle of a generator, or its ``with`` block.
    spared = () if threading.active_count() == 1 else _GENERATORS
    watch = _Watch(seconds, hangs)
    _finished.extend(things)
    for thing in _owners_first(things):
        if not gc.is_finalized(thing) and not issubclass(type(thing), spared):
            watch.begin(thing)
            if _is_file(thing):
                lost += _flush_one(thing)  # as it is closed, its errors are dropped
            _finalise(thing)
    for file in _owners_first(files):
        watch.begin(file)
        lost += _flush_one(file)
    c_stdio.flush(everything=True)
    watch.end()
    return lost + stdio.flush()


def _finalise(thing: Any) -> None:
    finaliser = getattr(type(thing), _finaliser(type(thing)))
    try:
        finaliser(thing)
    except BaseException:  # as Python: it goes on
        try:
            sys.stderr.write(f"Exception ignored in: {finaliser!r}\n")
            traceback.print_exc()
        except Exception:
            pass  # standard error is closed


def _standard_files() -> set[int]:
    """The ids of the standard streams and of what is below them: they are flushed, not closed."""
    found = set()
    for stream in (sys.stdin, sys.__stdin__, sys.__stdout__, sys.__stderr__):
        layer: Any = stream
        while _is_file(layer) and id(layer) not in found:
            found.add(id(layer))
            layer = getattr(layer, "buffer", None) or getattr(layer, "raw", None)
    return found


def _owners_first(things: list[Any]) -> list[Any]:
    """Sort: each before what it refers to, also through others; else as given."""
    wanted = {id(thing) for thing in things}
    seen: set[int] = set()
    order: list[Any] = []
    for thing in reversed(things):
        if id(thing) not in seen:
            order += (each for each in _postorder(thing, seen) if id(each) in wanted)
    return order[::-1]


def _postorder(root: Any, seen: set[int]) -> Iterator[Any]:
    """What ``root`` leads to and has not been ``seen``, owners last."""
    seen.add(id(root))
    path = [(root, iter(gc.get_referents(root)))]
    while path:
        thing, parts = path[-1]
        for part in parts:
            if id(part) in seen or not gc.is_tracked(part) or issubclass(type(part), _OPAQUE):
                continue
            if len(seen) < _MOST:
                seen.add(id(part))
                path.append((part, iter(gc.get_referents(part))))
                break
        else:
            path.pop()
            yield thing


def _name(thing: Any) -> str:
    kind = type(thing)
    if kind.__module__ == "_io":  # nothing of the program's is called
        return f"{kind.__name__} of {getattr(thing, 'name', '?')!r}"
    return f"{kind.__module__}.{kind.__qualname__}"


class _Watch:
    """Waits in a thread for each finaliser; there is none while nothing has to be finished."""

    def __init__(self, seconds: float, hangs: Callable[[str], NoReturn]) -> None:
        self._seconds = max(seconds, _LEAST)
        self._hangs = hangs
        self._over = threading.Event()
        self._begun = time.monotonic()
        self._thing: Any = None
        watcher = threading.Thread(target=self._wait, name="xmp-finalisers", daemon=True)
        with contextlib.suppress(RuntimeError):  # ulimit -u: no thread is left, they run unwatched
            watcher.start()

    def begin(self, thing: Any) -> None:
        self._thing, self._begun = thing, time.monotonic()

    def end(self) -> None:
        self._over.set()

    def _wait(self) -> None:
        left = self._seconds
        while not self._over.wait(left):
            left = self._begun + self._seconds - time.monotonic()
            if left <= 0:
                self._hangs(f"{_name(self._thing)}, {_where()}")


def _where() -> str:
    """Return the line of the finaliser at which the main thread is."""
    stack = traceback.extract_stack(sys._current_frames().get(threading.main_thread().ident or 0))
    ours = [number for number, frame in enumerate(stack) if frame.filename == __file__]
    frame = stack[min(ours[-1] + 1, len(stack) - 1)] if ours else stack[-1]
    return f"at {frame.filename}:{frame.lineno} in {frame.name}"
