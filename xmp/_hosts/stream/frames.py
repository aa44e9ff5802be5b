"""Frames on a byte stream whose ends do not wait: a head, which has kind and length, and a body.

A body is read to where it belongs: the bytes of a file go from the stream into the mapped file, and
are copied only there. Where the stream is not encrypted (``srun``: docs.schedmd.com, srun(1), has
no option for it), each head carries a code that only a process with the job's secret can make:
keyed BLAKE2b over number, kind and body, so that no frame can be forged, changed, repeated or left
out.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections import deque
from collections.abc import Callable, Iterator

from xmp._processes.messages.connection import Closed

__all__ = [
    "BEAT", "ENDED", "HELLO", "OUTPUT", "PACKET", "PIECE", "PIECE_SIZE", "SECRET", "FrameReader",
    "FrameWriter", "Seal", "StreamBroken", "frame_head", "seals",
]  # fmt: skip

PACKET, PIECE, OUTPUT, BEAT, ENDED, HELLO = range(1, 7)
PIECE_SIZE = 1 << 20
"""Bytes of a file in one frame. A beat waits for one such frame at most."""
_LIMIT = 2 * PIECE_SIZE
_HEAD = struct.Struct(">BI")
_COUNT = struct.Struct(">QB")
_CODE = 16
_AT_ONCE = 64
"""Frames that one call takes or writes: both directions get their turn."""
Body = bytes | memoryview
SECRET = "XMP_STREAM_SECRET"
"""The variable of a command whose stream is sealed."""


class StreamBroken(ValueError):
    """What came is no frame of the other end; the text says why."""


def frame_head(kind: int, size: int) -> bytes:
    """Return the head of a frame that is not sealed."""
    return _HEAD.pack(kind, size)


class Seal:
    """The codes of the frames in one direction."""

    def __init__(self, secret: bytes, direction: bytes, contents: bool = True) -> None:
        """``direction``: a word for it, with what is new in each stream.

        ``contents``: whether the bytes of files have codes, too, which takes 1.6 s for each GB.
        """
        self._contents = contents
        self._key = hmac.digest(secret, b"xmp stream " + direction, "sha256")
        self._count = 0

    def code(self, kind: int, body: Body) -> bytes:
        """Return the code of the next frame."""
        found = hashlib.blake2b(_COUNT.pack(self._count, kind), digest_size=_CODE, key=self._key)
        if self._contents or kind != PIECE:
            found.update(body)
        self._count += 1
        return found.digest()


def seals(secret: str, mark: str) -> tuple[Seal | None, Seal | None]:
    """Return those of frames to the host and to the driver; None without a secret.

    ``mark``: what the stream begins with, which is new in each.
    """
    ways = [f"to {who} {mark}".encode() for who in ("host", "driver")]
    first, second = (Seal(bytes.fromhex(secret), way) if secret else None for way in ways)
    return first, second


class FrameWriter:
    """What waits to be written to a stream."""

    def __init__(self, descriptor: int, seal: Seal | None = None) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor, self._seal = descriptor, seal
        self._waiting: deque[Iterator[tuple[int, Body]]] = deque()
        self._beat: bytes | None = None
        self._parts: list[memoryview] = []
        """What is left of the frame that is being written."""
        self.size = 0
        """Bytes of the bodies that wait, without those of files."""

    @property
    def empty(self) -> bool:
        """Whether everything has been written."""
        return not self._parts and not self._waiting and self._beat is None

    def put(self, kind: int, body: bytes = b"") -> None:
        """Write a frame, after all that waits."""
        self.size += len(body)
        self._waiting.append(iter([(kind, body)]))

    def put_pieces(self, views: Iterator[memoryview]) -> None:
        """Write the parts of a file, after all that waits, and take each when its turn has come."""
        self._waiting.append((PIECE, view) for view in views)

    def beat(self, body: bytes) -> None:
        """Write a beat, before all that waits; the last one alone counts."""
        self._beat = body

    def flush(self) -> bool:
        """Write what the stream takes now. Return whether nothing is left. Raise Closed."""
        for _ in range(_AT_ONCE):
            if not self._parts and not self._next():
                return True
            try:
                written = os.writev(self._descriptor, self._parts)
            except BlockingIOError:
                return False
            except OSError as error:
                raise Closed(str(error)) from error
            self._parts = list(_after(self._parts, written))
        return self.empty

    def _next(self) -> bool:
        """Begin the next frame; return False if none waits."""
        if self._beat is not None:
            body, self._beat = self._beat, None
            self._begin(BEAT, body)
            return True
        while self._waiting:
            found = next(self._waiting[0], None)
            if found is not None:
                self._begin(*found)
                return True
            self._waiting.popleft()
        return False

    def _begin(self, kind: int, body: Body) -> None:
        if kind not in (BEAT, PIECE):
            self.size -= len(body)
        code = b"" if self._seal is None else self._seal.code(kind, body)
        self._parts = [memoryview(frame_head(kind, len(body)) + code)]
        if body:
            self._parts.append(memoryview(body))


def _after(parts: list[memoryview], written: int) -> Iterator[memoryview]:
    for part in parts:
        if written < len(part):
            yield part[written:]
        written = max(0, written - len(part))


class FrameReader:
    """The frames that come on a stream."""

    def __init__(
        self,
        descriptor: int,
        room: Callable[[int], memoryview],
        seal: Seal | None = None,
        first_plain: bool = False,
    ) -> None:
        """``room`` returns where the next bytes of a file belong, or raises StreamBroken.

        ``first_plain``: whether there is a HELLO without a code first, whose sender has no xmp yet.
        """
        os.set_blocking(descriptor, False)
        self._descriptor, self._room, self._seal = descriptor, room, seal
        self._sealed = seal is not None and not first_plain
        self._head = bytearray(_HEAD.size + (_CODE if self._sealed else 0))
        self.early = b""
        """What was read from the stream before."""
        self._body: memoryview | None = None
        self._left = memoryview(self._head)

    def frames(self) -> Iterator[tuple[int, memoryview]]:
        """Yield the kind and the body of each whole frame that is there.

        Raises Closed at the end of the stream, and StreamBroken.
        """
        for _ in range(_AT_ONCE):
            try:
                found = self._frame()
            except BlockingIOError:
                return
            except OSError as error:
                raise Closed(str(error)) from error
            yield found

    def _frame(self) -> tuple[int, memoryview]:
        while True:
            while self._left:
                count = self._fill()
                if not count:
                    raise Closed("end of the stream")
                self._left = self._left[count:]
            kind, size = _HEAD.unpack_from(self._head)
            if self._body is None:
                self._body = self._left = self._place(kind, size)
                continue
            body, self._body = self._body, None
            self._check(kind, body)
            self._left = memoryview(self._head)
            # Nothing keeps the map of a file whose last piece has come: only then can it be sealed.
            return kind, memoryview(b"") if kind == PIECE else body

    def _fill(self) -> int:
        """Read what is there into the room that is left; return how many bytes that were."""
        if not self.early:
            return os.readv(self._descriptor, [self._left])
        count = min(len(self.early), len(self._left))
        self._left[:count] = self.early[:count]
        self.early = self.early[count:]
        return count

    def _place(self, kind: int, size: int) -> memoryview:
        if not PACKET <= kind <= HELLO or size > _LIMIT:
            raise StreamBroken(f"a frame of kind {kind} with {size} bytes")
        return self._room(size) if kind == PIECE else memoryview(bytearray(size))

    def _check(self, kind: int, body: memoryview) -> None:
        if self._seal is None:
            return
        if not self._sealed and kind != HELLO:
            raise StreamBroken("a frame without a code of authentication")
        if not self._sealed:
            self._sealed, self._head = True, bytearray(_HEAD.size + _CODE)
        elif not hmac.compare_digest(self._head[_HEAD.size :], self._seal.code(kind, body)):
            raise StreamBroken("a frame with a wrong code of authentication")
