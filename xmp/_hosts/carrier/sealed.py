"""Frames between two hosts that have proved to each other that they know the job's secret.

A frame is its length, its kind (one byte), an authentication code and the body. The code is keyed
BLAKE2b over the number of the frame, its kind and its body: a frame can be neither forged nor
changed, repeated or left out. The content is not encrypted: it is about the launch, and includes
tracebacks. The handshake is challenge and response in both directions, by HMAC, as in
multiprocessing.connection (Python 3.11, Lib/multiprocessing/connection.py). That module itself is
not used, since its messages are pickles.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Iterable, Iterator

from .words import Malformed

__all__ = [
    "ANSWER_SIZE", "BODY_LIMIT", "CARD_LIMIT", "GREETING_SIZE", "MAGIC", "OTHER_JOB",
    "OTHER_SECRET", "WELCOME", "WELCOME_SIZE", "Answer", "Frames", "Greeting", "Keys",
]  # fmt: skip

MAGIC = b"xmp-hosts-1\n"
_NONCE = 32
GREETING_SIZE = len(MAGIC) + _NONCE
ANSWER_SIZE = _NONCE + 16 + 32
WELCOME_SIZE = 33
WELCOME, OTHER_JOB, OTHER_SECRET = b"W", b"J", b"S"
"""The first byte of the coordinator's reply. The last two are hints for people, unauthenticated."""

_HEADER = struct.Struct(">IB")
_COUNT = struct.Struct(">QB")
_CODE = 16
BODY_LIMIT = 1 << 20
"""Bytes of the longest body: three texts of ``TEXT_LIMIT`` characters, all of them escaped."""
CARD_LIMIT = 1 << 13
"""Bytes of the longest body of a peer that has not come to the roll call."""


class Keys:
    """The keys and proofs that both ends of a connection derive from the job's secret."""

    def __init__(self, job: str, secret: bytes) -> None:
        self.has_secret = bool(secret)
        self.job = hashlib.blake2b(job.encode(), digest_size=16, person=b"xmp job id").digest()
        self._secret = hashlib.blake2b(job.encode(), key=hashlib.sha256(secret).digest()).digest()

    def proof(self, who: bytes, greeting: bytes, nonce: bytes) -> bytes:
        """Return the answer to both nonces that only a process with the secret can give."""
        return hmac.digest(self._secret, who + greeting + nonce, "sha256")

    def session(self, who: bytes, greeting: bytes, nonce: bytes) -> bytes:
        """Return the key of the frames that ``who`` sends on this connection."""
        return hmac.digest(self._secret, b"frames of " + who + greeting + nonce, "sha256")


class Greeting:
    """The coordinator's side of a handshake."""

    def __init__(self, keys: Keys) -> None:
        self.data = MAGIC + os.urandom(_NONCE)
        self._keys = keys

    def reply(self, answer: bytes) -> tuple[bytes, Frames | None]:
        """Return the reply to a member's answer, and Frames if the member has proved itself."""
        nonce, job, proof = answer[:_NONCE], answer[_NONCE : _NONCE + 16], answer[_NONCE + 16 :]
        keys = self._keys
        if not hmac.compare_digest(job, keys.job):
            return OTHER_JOB, None
        if not hmac.compare_digest(proof, keys.proof(b"member", self.data, nonce)):
            return OTHER_SECRET, None
        ours, theirs = (keys.session(w, self.data, nonce) for w in (b"coordinator", b"member"))
        return WELCOME + keys.proof(b"coordinator", self.data, nonce), Frames(ours, theirs)


class Answer:
    """A member's side of a handshake. Raises Malformed for a greeting that is not xmp's."""

    def __init__(self, keys: Keys, greeting: bytes) -> None:
        if not greeting.startswith(MAGIC) or len(greeting) != GREETING_SIZE:
            raise Malformed("the greeting is not that of xmp")
        self._keys, self._greeting, self._nonce = keys, greeting, os.urandom(_NONCE)
        self.data = self._nonce + keys.job + keys.proof(b"member", greeting, self._nonce)

    def frames(self, welcome: bytes) -> Frames:
        """Return the frames if the coordinator has proved itself too; else raise Malformed."""
        given = self._greeting, self._nonce
        proof = self._keys.proof(b"coordinator", *given)
        if not hmac.compare_digest(welcome, WELCOME + proof):
            raise Malformed("the coordinator does not know this job's secret")
        ours, theirs = (self._keys.session(w, *given) for w in (b"member", b"coordinator"))
        return Frames(ours, theirs)


class Frames:
    """The frames that one end of a connection sends and takes.

    Without keys the frames have no codes: between two processes of one host, on a socket pair.
    """

    def __init__(self, ours: bytes = b"", theirs: bytes = b"") -> None:
        self._ours, self._theirs = ours, theirs
        self._sent = self.taken = 0
        self._buffer = bytearray()
        self._empty = _HEADER.size + (_CODE if theirs else 0)
        """The size of a frame without a body."""
        self.limit = BODY_LIMIT
        """Bytes of the longest body that the other end may send."""

    @property
    def keys(self) -> tuple[bytes, bytes]:
        """Return the keys of what this end sends, and of what it takes."""
        return self._ours, self._theirs

    def frame(self, kind: int, body: bytes = b"") -> bytes:
        """Return the bytes of one frame. Frames must be sent in the order of the calls."""
        return self.head(kind, body) + body

    def head(self, kind: int, body: bytes = b"") -> bytes:
        """Return the part of a frame before its body; as ``frame`` otherwise."""
        code = _code(self._ours, self._sent, kind, body)
        self._sent += 1
        return _HEADER.pack(len(body), kind) + code

    def take(self, data: bytes) -> Iterable[tuple[int, bytes]]:
        """Return the frames that ``data`` completes, as (kind, body). Raises Malformed."""
        if len(data) == self._empty and not self._buffer:
            size, kind = _HEADER.unpack_from(data)
            if not size:
                self._check(data[_HEADER.size :], kind, b"")
                return ((kind, b""),)  # mostly a beat, as most frames of a coordinator are
        self._buffer += data
        return self._complete()

    def _complete(self) -> Iterator[tuple[int, bytes]]:
        codes = self._empty - _HEADER.size
        while len(self._buffer) >= _HEADER.size:
            size, kind = _HEADER.unpack_from(self._buffer)
            if size > self.limit:
                raise Malformed(f"a frame of {size} bytes")
            start = _HEADER.size + codes
            if len(self._buffer) < start + size:
                return
            code = bytes(self._buffer[_HEADER.size : start])
            body = bytes(self._buffer[start : start + size])
            del self._buffer[: start + size]
            self._check(code, kind, body)
            yield kind, body

    def _check(self, code: bytes, kind: int, body: bytes) -> None:
        if not hmac.compare_digest(code, _code(self._theirs, self.taken, kind, body)):
            raise Malformed("a frame with a wrong code of authentication")
        self.taken += 1


def _code(key: bytes, number: int, kind: int, body: bytes) -> bytes:
    if not key:
        return b""
    content = _COUNT.pack(number, kind) + body
    return hashlib.blake2b(content, digest_size=_CODE, key=key).digest()
