"""Finishes, before ``os._exit``, the objects that Python's own finalisation would have finished.

A replica cannot end as a script does. Device runtimes and native threads crash or hang while an
interpreter is finalised, and clearing all modules writes into every page that is shared with the
template. Without any finalisation the last buffer of each open file is lost, with exit status 0.
So a process calls the finalisers, and frees nothing:

- It begins with ``gc.freeze``, which costs nothing: all objects that ``gc.get_objects`` finds later
  it has made itself. It finishes these, and no older ones: it calls ``__del__`` (of a file: flush
  and close) of owners before that of the objects they own, as in ``zip file -> file``. An order by
  age would close a file before the object that still writes to it.
- Before it forks, it writes out the buffers of its open files (``before_fork``): otherwise every
  fork would write the same bytes. Its forks flush those files again, for data that they write
  themselves, but neither close nor finalise them: a temporary file is deleted once, where it was
  made.
- Anything that is freed without ``__del__`` (C++ destructors, callbacks of weak references) does
  not run: that is where the crashes are.

Files are also found in Python objects to which only a library's C code refers. Files to which only
the frame of a daemon thread refers are finished here, although Python leaves them.
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

from . import stdio

__all__ = ["before_fork", "begin", "descriptors", "finish", "write_out"]

_MOST = 100_000
"""The most objects that are followed to find owners; the others stay in the order of age."""
_LEAST = 0.5
"""The least seconds for a finaliser: a ``grace`` of 0 is meant for replicas that would go on after
a failure."""
_GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_LAYERS = (_io.TextIOWrapper, _io.BufferedWriter, _io.BufferedReader, _io.BufferedRandom)
_OPAQUE = (type, types.ModuleType, types.FunctionType, types.FrameType, types.CodeType)
"""They lead to everything, and own no file."""
_Reference = Callable[[], Any]

_freeze = gc.freeze
_made: dict[int, list[_Reference]] = {}
"""Objects that a process has made before ``gc.freeze`` or a fork, by the pid of the process."""
_inherited: dict[int, _Reference] = {}
"""Objects made by the processes from which this one was forked, by id."""
_finished: list[Any] = []
"""Finished objects, kept until ``os._exit``: if one were freed before, Python would call its
``__del__`` again. Some allow only one call: multiprocessing's connections close their number each
time."""
# Not by attribute: a metaclass may define these, which would run the program's code, in the
# launcher too.
_mro = type.__dict__["__mro__"].__get__
_members = type.__dict__["__dict__"].__get__


def _finaliser(kind: type) -> str:
    """Return the method that finishes objects of a type; empty if nothing has to be finished."""
    found, sqlite = "", getattr(sys.modules.get("sqlite3"), "Connection", None)
    for base in _mro(kind):
        if "__del__" in _members(base):
            found = "__del__"
        elif base is sqlite:
            found = found or "close"  # freeing it would roll back; without it a journal would stay
    # A socket has no pending data, and one of them leads to the supervisor.
    return "" if issubclass(kind, _socket.socket) else found


def begin() -> None:
    """Take all objects that exist now for the parent's."""
    _freeze()
    gc.freeze = _freeze_of_the_program


def _freeze_of_the_program() -> None:
    """Note the objects that ``gc.freeze`` will hide: this process must finish them nevertheless."""
    _keep(_young())
    _freeze()


def _keep(things: Iterable[Any]) -> list[_Reference]:
    kept = [_reference(each) for each in things]
    _made.setdefault(os.getpid(), []).extend(kept)
    return kept


def _own() -> list[Any]:
    """Return the objects with a finaliser that this process has made and still has."""
    kept = [each() for each in _made.get(os.getpid(), ())]
    return [each for each in kept if each is not None] + _young()


def _young() -> list[Any]:
    """Return unfrozen objects with a finaliser that this process has made, in order of age.

    No type is kept here: its methods' globals would stay at the launcher's own end, unfinished.
    """
    everything = gc.get_objects()
    kinds = {id(type(each)): type(each) for each in everything}  # a type may have a hash of its own
    finished = {number for number, kind in kinds.items() if _finaliser(kind)}
    return [each for each in everything if id(type(each)) in finished and not _is_inherited(each)]


def _is_inherited(thing: Any) -> bool:
    known = _inherited.get(id(thing))  # gc.unfreeze() makes inherited objects visible again
    return known is not None and known() is thing


def _reference(thing: Any) -> _Reference:
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing


# --- files ----------------------------------------------------------------------------------------


def before_fork() -> None:
    """Write out this process's buffers, and note the objects that its forks must not finish."""
    _flush_log_records()
    young = _young()
    _flush(young)
    stdio.flush()
    # fflush(NULL) would wait for a stream that another thread is reading.
    stdio.flush_c(everything=threading.active_count() == 1)
    _inherited.update(zip(map(id, young), _keep(young)))


def write_out() -> list[str]:
    """Write out the buffers of the open files. Return what could not be written."""
    return _flush([*_own(), *(each() for each in _inherited.values())]) + stdio.flush()


def descriptors() -> set[int]:
    """Return the descriptors of the regular files that this process has to finish."""
    found = set()
    for file in filter(_is_file, _own()):
        try:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                found.add(file.fileno())
        except Exception:
            pass  # closed, a file in memory, or any error of a file class of the program
    return found


def _flush_log_records() -> None:
    """Flush memory handlers of logging: each fork would have their records."""
    handlers: Any = sys.modules.get("logging.handlers")
    if handlers is not None:
        for reference in list(handlers.logging._handlerList):
            handler = reference()
            if isinstance(handler, handlers.MemoryHandler):
                handler.flush()


def _flush(things: Iterable[Any]) -> list[str]:
    """Flush the things that are files open for writing. Return what is lost.

    Upper layers come first: their flush only fills the buffers below.
    """
    files = _owners_first([each for each in things if _is_file(each)])
    return [line for file in files for line in _flush_one(file)]


def _flush_one(file: Any) -> list[str]:
    """Flush a file if it is open for writing. Return what is lost."""
    try:
        if not file.closed and file.writable():
            file.flush()
    except (BrokenPipeError, ValueError):
        pass  # the reader has gone; or the file was closed or detached
    except Exception as error:  # a full disk, or any error of a file class of the program
        return [f"{_name(file)}: {type(error).__name__}: {error}"]
    return []


def _is_file(thing: Any) -> bool:
    return issubclass(type(thing), _io._IOBase)  # isinstance asks the object, which may be a proxy


def _is_standard(file: Any) -> bool:
    """Return whether a file leads to standard input, output or error, through Python's own classes.

    No method of another class is called: it may raise anything, as those of a closed gzip file do.
    """
    layer = file
    try:
        while type(layer) in _LAYERS:
            layer = layer.buffer if type(layer) is _io.TextIOWrapper else layer.raw
        return type(layer) is _io.FileIO and layer.fileno() in (0, 1, 2)
    except ValueError:  # closed, or detached
        return False


# --- finalisers -----------------------------------------------------------------------------------


def finish(seconds: float, hangs: Callable[[str], NoReturn]) -> list[str]:
    """Finish the objects that this process has made. Return what could not be written.

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
        stdio.flush_c(everything=True)
        return lost
    # Another thread may be in the middle of a generator, or in a ``with`` block of it.
    spared = () if threading.active_count() == 1 else _GENERATORS
    watch = _Watch(seconds, hangs)
    _finished.extend(things)
    for thing in _owners_first(things):
        if not gc.is_finalized(thing) and not issubclass(type(thing), spared):
            watch.begin(thing)
            if _is_file(thing):
                lost += _flush_one(thing)  # first, since errors are dropped when it is closed
            _finalise(thing)
    streams = [file for file in files if _is_standard(file)]  # that of torch's log handlers
    for file in _owners_first([file for file in files if not _is_standard(file)]):
        watch.begin(file)
        lost += _flush_one(file)
    stdio.flush_c(everything=True)
    watch.end()
    return lost + _flush(streams) + stdio.flush()


def _finalise(thing: Any) -> None:
    finaliser = getattr(type(thing), _finaliser(type(thing)))
    try:
        finaliser(thing)
    except BaseException:  # as Python does: report it and go on
        try:
            sys.stderr.write(f"Exception ignored in: {finaliser!r}\n")
            traceback.print_exc()
        except Exception:
            pass  # standard error is closed


def _standard_files() -> set[int]:
    """Return the ids of the standard streams and their layers: they are flushed, not closed."""
    found = set()
    for stream in (sys.stdin, sys.__stdin__, sys.__stdout__, sys.__stderr__):
        layer: Any = stream
        while _is_file(layer) and id(layer) not in found:
            found.add(id(layer))
            layer = getattr(layer, "buffer", None) or getattr(layer, "raw", None)
    return found


def _owners_first(things: list[Any]) -> list[Any]:
    """Sort each thing before those that it refers to, directly or not; else keep the order."""
    wanted = {id(thing) for thing in things}
    seen: set[int] = set()
    order: list[Any] = []
    for thing in reversed(things):
        if id(thing) not in seen:
            order += (each for each in _postorder(thing, seen) if id(each) in wanted)
    return order[::-1]


def _postorder(root: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the objects that ``root`` leads to and that were not ``seen`` yet, owners last."""
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
    """A thread that waits for each finaliser; the first starts it, as most replicas have none."""

    def __init__(self, seconds: float, hangs: Callable[[str], NoReturn]) -> None:
        self._seconds = max(seconds, _LEAST)
        self._hangs = hangs
        self._over = threading.Event()
        self._begun = time.monotonic()
        self._thing: Any = None

    def begin(self, thing: Any) -> None:
        first = self._thing is None
        self._thing, self._begun = thing, time.monotonic()
        if first:
            watcher = threading.Thread(target=self._wait, name="xmp-finalisers", daemon=True)
            with contextlib.suppress(RuntimeError):  # ulimit -u: without a thread: unwatched
                watcher.start()

    def end(self) -> None:
        self._over.set()

    def _wait(self) -> None:
        left = self._seconds
        while not self._over.wait(left):
            left = self._begun + self._seconds - time.monotonic()
            if left <= 0:
                self._hangs(f"{_name(self._thing)}, {_where()}")


def _where() -> str:
    """Return the line of the finaliser that the main thread is executing."""
    stack = traceback.extract_stack(sys._current_frames().get(threading.main_thread().ident or 0))
    ours = [number for number, frame in enumerate(stack) if frame.filename == __file__]
    frame = stack[min(ours[-1] + 1, len(stack) - 1)] if ours else stack[-1]
    return f"at {frame.filename}:{frame.lineno} in {frame.name}"
