"""The records of all local replicas in shared memory: where each rank is among the others.

Each replica writes its own line: no message is sent, and no thread of xmp's is needed. The
supervisor reads a line when a limit has passed or when it is asked; a replica that enters a
collective compares it with those of the others (``differing``).

**A reader never waits for a writer**, which may be stopped in the middle of a line. The writer
makes the version odd, writes, and makes it even; a reader takes what it has after a few tries.
Each word is eight aligned bytes, which a processor stores at once.

**Memory order.** Of two ranks that enter one collective at the same time, at least one has to see
the other's line. A processor may delay a store until after its next loads (x86 and Arm do, for
nanoseconds); between the two lie dozens of bytecodes. If that fails nevertheless, a difference goes
unseen, as it would without this check.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from time import monotonic_ns
from typing import NamedTuple

from xmp._words.record import Record

from . import linux
from .descriptors import move_above

__all__ = ["RECORDS", "Entry", "OwnRecord", "Records"]

RECORDS = "xmp-records-"
"""The name of the file, before the rank of the first line: other processes find it by that."""
_LINE = 512  # bytes: no two replicas write into the same cache line
_RAN, _BEAT, _VERSION, _NUMBER, _OPERATION, _GROUP, _SIGNATURE, _SINCE, _INSIDE = range(9)
"""The words of a line, of eight bytes each; the tenth is the members' mask."""
_FIELDS = struct.Struct("6qQ")
"""From ``_NUMBER`` on; the last are the members."""
_TEXT = 192  # bytes
_SITE, _DETAIL = 128, 128 + _TEXT  # where a text begins
_OPERATIONS = ("", "barrier", "all_reduce", "broadcast", "all_gather", "once_per_host")
_TRIES = 5


class Records:
    """The lines of all local replicas; made by the supervisor before it makes the replicas."""

    def __init__(self, descriptor: int, count: int, first_rank: int = 0) -> None:
        """Map a file of records; ``first_rank`` is the global rank of local rank 0.

        Where the file could not be made so large, use memory that forks inherit. Fresh interpreters
        then write into memory that only they see.
        """
        self.descriptor = descriptor
        self.count = count
        self.first_rank = first_rank
        size = max(count, 1) * _LINE
        whole = os.fstat(descriptor).st_size == size
        self._memory = linux.mapped(descriptor, size) if whole else memoryview(mmap.mmap(-1, size))
        self._words = self._memory.cast("q")

    @classmethod
    def new(cls, count: int, first_rank: int = 0, above: int = 0) -> Records:
        """Make the file: fresh interpreters get its descriptor, others find it by its name.

        Its descriptor is ``above`` or higher.
        """
        descriptor = move_above(linux.memory_file(f"{RECORDS}{first_rank}"), above)
        try:
            os.ftruncate(descriptor, count * _LINE)
            linux.seal_size(descriptor)  # every replica has it, and the supervisor reads it
        except OSError as error:
            if error.errno != errno.EFBIG:  # `ulimit -f` holds for files in memory, too
                raise
        return cls(descriptor, count, first_rank)

    @classmethod
    def of_file(cls, descriptor: int, first_rank: int) -> Records:
        """Map the file of another launch: as many records as it has."""
        return cls(descriptor, os.fstat(descriptor).st_size // _LINE, first_rank)

    def last_progress(self, local_rank: int) -> int:
        """Return when a replica last made progress: monotonic nanoseconds, 0 before it begins."""
        first = local_rank * _LINE // 8
        return max(self._words[first + word] for word in (_RAN, _BEAT, _SINCE))

    def read(self, local_rank: int) -> Record:
        """Return a replica's record."""
        at = local_rank * _LINE
        for _ in range(_TRIES):
            version = self._words[at // 8 + _VERSION]
            fields = _FIELDS.unpack_from(self._memory, at + _NUMBER * 8)
            site, detail = self._text(at + _SITE), self._text(at + _DETAIL)
            if version % 2 == 0 and version == self._words[at // 8 + _VERSION]:
                break
        number, operation, group, signature, since, inside, members = fields
        return Record(
            number=number,
            operation=_OPERATIONS[operation % len(_OPERATIONS)],
            group=group,
            members=tuple(self.first_rank + n for n in range(self.count) if members >> n & 1),
            signature=signature,
            detail=detail,
            site=site,
            since=since,
            inside=bool(inside),
            beat=self._words[at // 8 + _BEAT],
        )

    def _text(self, at: int) -> str:
        text = bytes(self._memory[at : at + _TEXT]).rstrip(b"\0").decode(errors="replace")
        # Any replica can write into the line of any other, and the text reaches a terminal.
        return "".join(each if each.isprintable() else "?" for each in text)

    def own(self, local_rank: int) -> OwnRecord:
        """Return what the replica itself writes its line with."""
        return OwnRecord(self, local_rank, self._memory, self._words)


class Entry(NamedTuple):
    """What is written for one call of a collective, and for all that are like it."""

    operation: int
    signature: int
    texts: bytes


class OwnRecord:
    """A replica's own line, as it writes it."""

    def __init__(
        self, records: Records, local_rank: int, memory: memoryview, words: memoryview
    ) -> None:
        self._records = records
        self._memory = memory
        self._words = words
        at = local_rank * _LINE
        self._first = at // 8
        self._version = self._first + _VERSION
        self._fields = at + _NUMBER * 8
        self._texts = slice(at + _SITE, at + _SITE + 2 * _TEXT)
        self._written: Entry | None = None
        self._numbers: dict[int, int] = {}
        """How many collectives of each group this replica has entered."""

    def ran(self) -> None:
        """Note that the main thread has executed Python."""
        self._words[self._first + _RAN] = monotonic_ns()

    def beat(self) -> None:
        """Note that the program makes progress."""
        self._words[self._first + _BEAT] = monotonic_ns()

    def entry(self, operation: str, site: bytes, detail: bytes, signature: int) -> Entry:
        """Return what ``enter`` writes, prepared once for all calls that are alike.

        Args:
            operation: the collective's name, as in ``Record``.
            site: the user's line; what is too long loses its beginning.
            detail: what must be equal on all ranks, in words.
            signature: a hash of operation and detail.
        """
        texts = site[-_TEXT:].ljust(_TEXT, b"\0") + detail[:_TEXT].ljust(_TEXT, b"\0")
        return Entry(_OPERATIONS.index(operation), signature, texts)

    def enter(self, entry: Entry, group: int, members: int) -> int:
        """Note that this replica enters a collective. Return its number in its group.

        Args:
            entry: the call, from ``entry``.
            group: 0 for all replicas.
            members: a bit for each local rank of the group; 0 for all.
        """
        number = self._numbers.get(group, 0) + 1
        self._numbers[group] = number
        words, version, memory = self._words, self._version, self._memory
        words[version] += 1
        if entry is not self._written:
            memory[self._texts] = entry.texts
            self._written = entry
        _FIELDS.pack_into(
            memory, self._fields, number, entry.operation, group, entry.signature, monotonic_ns(),
            1, members,
        )  # fmt: skip
        words[version] += 1
        return number

    def leave(self) -> None:
        """Note that this replica has left the collective."""
        self._words[self._first + _SINCE] = monotonic_ns()
        self._words[self._first + _INSIDE] = 0

    def end_call(self) -> None:
        """Count collectives from 0 again: a gang's call is over."""
        self._numbers.clear()
        self._words[self._version] += 1
        self._memory[self._fields : self._fields + _FIELDS.size] = bytes(_FIELDS.size)
        self._words[self._version] += 1

    def differing(self, group: int, number: int, signature: int) -> list[int]:
        """Return the local ranks in this collective of this group with another signature.

        Those that have left it are not asked: a program may call one collective through xmp on one
        rank and through torch on another, after which their numbers differ for good.
        """
        words, found, step = self._words, [], _LINE // 8
        for first in range(0, self._records.count * step, step):
            if not words[first + _INSIDE] or words[first + _NUMBER] != number:
                continue
            version = words[first + _VERSION]
            differs = words[first + _GROUP] == group and words[first + _SIGNATURE] != signature
            # One that is just being written, by a rank that will see this one's.
            if differs and version % 2 == 0 and words[first + _VERSION] == version:
                found.append(first // step)
        return found

    def read(self, local_rank: int) -> Record:
        """Return the record of another local rank."""
        return self._records.read(local_rank)
