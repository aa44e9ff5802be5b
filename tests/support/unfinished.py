"""What a program may leave open when it ends, each thing as a file that can be compared.

``begin(folder)`` makes all of it and keeps it in a global; ``end(how)`` ends as a program may.
``left(folder)`` reads what is there afterwards. What Python itself leaves is the table.
"""

from __future__ import annotations

import atexit
import bz2
import csv
import ctypes
import dbm.dumb
import gzip
import io
import logging
import logging.handlers
import lzma
import os
import shelve
import signal
import sqlite3
import sys
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any

__all__ = ["ENDINGS", "append", "begin", "end", "left"]

ENDINGS = ("return", "raise", "exit", "handler returns", "handler raises")
LINE = "loss,1.0\n"
kept: list[Any] = []


def append(path: str, line: str) -> None:
    """Write at once, so that what runs twice is there twice."""
    with open(path, "a") as file:
        file.write(line)


class Owner:
    """Writes to a file of its own when it is finalised: before the file is closed."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __del__(self) -> None:
        self.file.write("last\n")


class Member:
    """In a circle: Python finalises it late, when the names of modules are gone."""

    def __init__(self, path: str) -> None:
        self.me = self
        self.number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.write = os.write

    def __del__(self) -> None:
        self.write(self.number, b"once\n")


def suspended(path: str) -> Iterator[None]:
    """A generator that waits in the middle."""
    with open(path, "w") as file:
        file.write(LINE)
        try:
            yield
        finally:
            file.write("last\n")


def python_files(at: Callable[[str], str]) -> Iterator[Any]:
    """Files of Python's own, with something in their buffers."""
    text = open(at("text"), "a")
    text.write(LINE)
    yield text
    binary = open(at("binary"), "ab")
    binary.write(b"\0" * 100)
    yield binary
    both = open(at("both"), "w+b")
    both.write(LINE.encode())
    yield both
    yield io.TextIOWrapper(io.BufferedWriter(io.FileIO(at("layers"), "w")))
    rows = csv.writer(open(at("rows.csv"), "w"))
    rows.writerow(["loss", 1.0])
    yield rows
    for kind, opened in (("gz", gzip.open), ("bz2", bz2.open), ("xz", lzma.open)):
        packed: Any = opened(at(f"packed.{kind}"), "wt")
        packed.write(LINE)
        yield packed
    archive = zipfile.ZipFile(at("archive.zip"), "w")
    archive.writestr("log.csv", LINE)
    yield archive
    temporary = tempfile.NamedTemporaryFile("w", dir=at("."), suffix=".tmp")
    temporary.write(LINE)
    yield temporary
    yield tempfile.TemporaryDirectory(dir=at("."), suffix=".folder")


def other_things(at: Callable[[str], str]) -> Iterator[Any]:
    """Databases, loggers, objects with finalisers, C."""
    table = shelve.Shelf(dbm.dumb.open(at("shelf"), "c"), writeback=True)
    table["loss"] = [1.0]
    table["loss"].append(2.0)
    yield table
    connection = sqlite3.connect(at("table.sqlite"))
    connection.execute("create table log (loss)")
    connection.commit()
    connection.execute("insert into log values (1.0)")
    yield connection
    late = logging.FileHandler(at("late.log"), delay=True)
    memory = logging.handlers.MemoryHandler(99, target=logging.FileHandler(at("memory.log")))
    for handler in (late, memory):
        handler.handle(logging.LogRecord("xmp", logging.INFO, "", 0, "loss 1.0", None, None))
        yield handler
    yield Owner(open(at("owned"), "w"))
    file = open(at("older"), "w")  # made before the owner
    yield [file, Owner(file)]
    yield Member(at("circle"))
    thing = Member(at("finalize"))
    weakref.finalize(thing, append, at("finalize"), "finalize\n")
    yield thing
    util.Finalize(None, append, (at("multiprocessing"), "Finalize\n"), exitpriority=1)
    atexit.register(append, at("atexit"), "atexit\n")
    generator = suspended(at("generator"))
    next(generator)
    yield generator
    yield of_c(at("c"))


def of_c(path: str) -> Any:
    """A stream of C's, whose buffer Python does not know."""
    libc: Any = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    stream = libc.fopen(path.encode(), b"a")
    libc.fputs(LINE.encode(), ctypes.c_void_p(stream))
    return stream


def begin(folder: str) -> None:
    """Make everything in ``folder``, and keep it."""
    os.makedirs(folder, exist_ok=True)

    def at(name: str) -> str:
        return os.path.join(folder, name)

    kept.extend([*python_files(at), *other_things(at)])
    kept[3].write(LINE)


def end(how: str) -> None:
    """End as one of ``ENDINGS``."""

    def raises(number: int, frame: Any) -> None:
        raise InterruptedError("by a handler")

    if how == "raise":
        raise ValueError("at the end")
    if how == "exit":
        sys.exit(3)
    if how.startswith("handler"):
        signal.signal(signal.SIGTERM, raises if how == "handler raises" else lambda *_: None)
        os.kill(os.getpid(), signal.SIGTERM)


def left(folder: Path) -> dict[str, Any]:
    """Read what is in the folder, by name."""
    return {path.name: readable(path) for path in sorted(folder.iterdir())}


def readable(path: Path) -> Any:
    """Read one file; return the name of the error if it is not complete."""
    try:
        return content(path)
    except (OSError, EOFError, lzma.LZMAError, zipfile.BadZipFile) as error:
        return type(error).__name__


def content(path: Path) -> Any:
    """Of compressed files what is packed (their heads have times), of a database its rows."""
    opened: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    if path.suffix in opened:
        return opened[path.suffix](path).read()
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    if path.suffix == ".sqlite":
        return sqlite3.connect(path).execute("select * from log").fetchall()
    return path.read_bytes()


if __name__ == "__main__":
    begin(sys.argv[1])
    end(sys.argv[2])
