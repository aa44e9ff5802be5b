"""What a replica writes into its record around each collective, and compares with the others.

A record says what is called, from which line of the user's, with which data. It costs about a
microsecond and no message.

**Of two ranks whose calls differ, the later one sees it** in the other's record before it moves any
data: a rank writes its own record first and then reads the others'. It waits for none of them, so
that a collective takes as long as without the check. The later one raises, and makes the group
unusable (``Framework.abandon``): those that wait for its data then fail, find the same difference,
and raise the same error. No rank returns a wrong number. What must be equal is the operation, its
arguments, and the data types, shapes and structure of what is reduced; a different line of the
program is no difference, since branches of it may call the same collective.

XMP_CHECK=0 switches the comparison off. The records of other hosts lie in their own memory: with
XMP_CHECK=1 the ranks of a call send each other what they are about to do, in one more collective,
which is the same for all of them whatever comes after it.

**With a time limit** the ranks first meet, through the supervisor or, over hosts, through the
framework's own store. One process decides whether all have come: all ranks raise, or none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable
from contextlib import suppress
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from xmp._os import signals

from .limits import Limit, meeting_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from xmp._words.record import Record

    from .identity import OwnRecord, ReplicaState

__all__ = ["ALL", "Group", "Joined", "data", "described", "within"]

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_MOST_KNOWN = 4096


class Group(NamedTuple):
    """The ranks that take part."""

    number: int
    """The same on all ranks of the group; 0: all ranks."""
    members: int
    """A bit for each local rank; 0: all ranks, or more than a record has bits for."""
    ranks: tuple[int, ...] = ()
    """The global ranks; empty: all."""


ALL = Group(0, 0)
_BITS = 64


def within(state: ReplicaState, name: str, ranks: tuple[int, ...]) -> Group:
    """Return the group of these global ranks; an empty ``name`` is that of all."""
    if not name:
        return ALL
    first = state.info.rank - state.info.local_rank
    local = range(first, first + min(state.info.local_world_size, _BITS))
    bits = sum(1 << rank - first for rank in ranks if rank in local)
    return Group(_hash(f"{name}/{ranks}".encode()), bits, ranks)


class Joined:
    """A collective of this replica, from its entry to its end: a context manager.

    Not one of contextlib's, which takes longer than all that this one does.
    """

    __slots__ = ("_abandon", "_data", "_gather", "_group", "_limit", "_operation", "_place",
                 "_record", "_signature", "_state")  # fmt: skip

    def __init__(
        self,
        state: ReplicaState,
        operation: str,
        data: Hashable = "",
        group: Group = ALL,
        abandon: Callable[[str], None] | None = None,
        limit: Limit | None = None,
        gather: Callable[[Any], Sequence[Any]] | None = None,
    ) -> None:
        """Prepare one call.

        Args:
            state: this replica's.
            operation: the collective's name.
            data: what must be equal on all ranks; as words, or as ``data`` returns it.
            group: the ranks that take part.
            abandon: makes the group unusable on all its ranks, and says why.
            limit: how the ranks meet first, and for how long this one waits.
            gather: all_gather of the group, if its ranks are on several hosts.
        """
        self._state, self._operation, self._data = state, operation, data
        self._group, self._abandon, self._limit, self._gather = group, abandon, limit, gather

    def __enter__(self) -> None:
        record = self._state.record
        self._record = record if record is not None and self._state.is_own() else None
        if self._record is None:
            if self._limit is not None:
                self._limit.meet(self._operation, self._group.ranks, self._group.number)
            return
        if self._state.call.broken:
            raise RuntimeError(self._state.call.broken)
        limited = self._limit is not None
        entry, self._signature = _entry(
            self._record, sys._getframe(1), self._operation, self._data, limited
        )
        number, members, _ = self._group
        self._place = number, self._record.enter(entry, number, members)
        if self._differing():
            self._refuse()
        if self._limit is None and self._gather is None:
            return
        try:
            if self._limit is not None:
                self._limit.meet(self._operation, self._group.ranks, *self._place)
            if self._gather is not None and self._compares:
                self._compare(self._gather)
        except BaseException as error:
            if isinstance(error, Exception) and self._differing():
                self._refuse()  # another rank has called the meeting off
            self._record.leave()
            raise

    @property
    def _compares(self) -> bool:
        """Return whether all ranks send each other their calls, those of this host too."""
        return self._gather is not None and self._state.checks_hosts()

    def _compare(self, gather: Callable[[Any], Sequence[Any]]) -> None:
        """Raise on all ranks if their calls differ. No data has moved: the group stays usable."""
        assert self._record is not None
        own = self._record.read(self._state.info.local_rank)
        called = gather((self._signature, _call(own)))
        if len({signature for signature, _ in called}) == 1:
            return
        ranks = self._group.ranks or range(len(called))
        raise RuntimeError(
            self._difference((rank, words) for rank, (_, words) in zip(ranks, called))
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._record is None:
            return
        if isinstance(error, Exception) and self._differing():
            with signals.deferred():
                from traceback import clear_frames  # no program that goes well needs it

            # What its frames hold, such as a work of torch's, would keep the group's connections
            # open: the others would wait for this rank for ever.
            clear_frames(error.__traceback__)
            self._refuse()
        self._record.leave()

    def _differing(self) -> list[int]:
        assert self._record is not None
        if not self._state.checks() or self._compares:
            return []
        return self._record.differing(*self._place, self._signature)

    def _refuse(self) -> NoReturn:
        """Raise the error of a difference; an error that it has led to is no cause of it.

        The record stays as it is: the others find the difference in it when their call fails.
        """
        assert self._record is not None
        info, calls = self._state.info, []
        for local_rank in range(info.local_world_size):
            record = self._record.read(local_rank)
            if (record.inside, record.group, record.number) == (True, *self._place):
                calls.append((info.rank - info.local_rank + local_rank, _call(record)))
        message = self._difference(calls)
        if self._state.channel is not None:
            with suppress(RuntimeError):  # no supervisor hears it any more
                self._state.channel.call_off(meeting_of(self._state, *self._place), message)
        if self._abandon is not None:
            self._abandon(message)
        else:
            self._state.call.broken = f"no collective can follow one that was refused: {message}"
        raise RuntimeError(message) from None

    def _difference(self, calls: Iterable[tuple[int, str]]) -> str:
        """Return the text of the error, with the ranks of each side."""
        with signals.deferred():
            from xmp._words.record import ranks  # no program that goes well needs it

        sides: dict[str, list[int]] = {}
        for rank, words in calls:
            sides.setdefault(words, []).append(rank)
        text = "; ".join(f"{ranks(group)}: {words}" for words, group in sides.items())
        more = "" if len(sides) > 1 else " (they differ in what is not shown of such long values)"
        return f"the ranks' calls of collective {self._place[1]} differ: {text}{more}"


def _call(record: Record) -> str:
    return f"{record.operation}({record.detail}) at {record.site}"


# --- what is written ------------------------------------------------------------------------------

_entries: dict[tuple[CodeType, int, str, Hashable, bool], tuple[Any, int]] = {}
"""What was written before, by the line, the operation and the data of the call."""


def _entry(
    record: OwnRecord, frame: FrameType | None, operation: str, data: Hashable, limited: bool
) -> tuple[Any, int]:
    """Return the entry of a call and its signature; its line is the innermost that is not xmp's."""
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None:  # a thread of xmp's own
        return _made(record, b"", operation, data, limited)
    key = frame.f_code, frame.f_lineno, operation, data, limited
    known = _entries.get(key)
    if known is None:
        if len(_entries) >= _MOST_KNOWN:
            _entries.clear()
        site = os.fsencode(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        known = _entries[key] = _made(record, site, operation, data, limited)
    return known


def _made(
    record: OwnRecord, site: bytes, operation: str, data: Hashable, limited: bool
) -> tuple[Any, int]:
    words = data if isinstance(data, str) else _words(*data)  # type: ignore[misc]
    detail = ", ".join(filter(None, [words, "timeout" if limited else ""])).encode(errors="replace")
    signature = _hash(operation.encode() + b"/" + detail)
    return record.entry(operation, site, detail, signature), signature


def _hash(text: bytes) -> int:
    """Return a hash below 2**32 that is the same in every process."""
    with signals.deferred():
        from zlib import crc32  # `import xmp` need not load it

    return crc32(text)


def data(op: str, value: Any) -> Hashable:
    """Return what must be equal of a reduction: (op, data type, shape) of one array, or words."""
    if not isinstance(value, (dict, list, tuple, int, float, complex)):
        try:
            return op, value.dtype, tuple(value.shape)
        except Exception:  # no array, or one without a shape (torch's nested tensors)
            pass
    return f"{op} of {described(value)}"


def _words(op: str, dtype: Any, shape: Sequence[int]) -> str:
    return f"{op} of {_array(str(dtype), shape)}"


def described(value: Any) -> str:
    """Return the data types, shapes and structure of a tree in words: "{'loss': float32[4]}"."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (type(key).__name__, repr(key)))
        return "{" + ", ".join(f"{key!r}: {described(value[key])}" for key in keys) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(described, value)) + "]"
    if isinstance(value, (int, float, complex)):
        return "number"  # of any kind: replicas may have different ones
    try:
        return _array(str(value.dtype), value.shape)
    except Exception:
        return "other"


def _array(dtype: str, shape: Sequence[int]) -> str:
    if not shape and not dtype.startswith("torch."):
        return "number"  # of numpy or JAX, beside which a replica may have one of Python's
    return f"{dtype.removeprefix('torch.')}[{', '.join(map(str, shape))}]"
