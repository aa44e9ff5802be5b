"""Results, shared values and exceptions between processes: images, in memory files if large.

The sender of a memory file fixes its size: a process that maps a file which its owner then
truncates dies of SIGBUS. An exception is sent, with its causes and contexts, only if it unpickles
as its own class: a class may pickle as something else.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from typing import Any

from xmp._os import signals
from xmp._os.skips import received, sent
from xmp._payload import Image, load_image, pack_image
from xmp._processes.system import linux

__all__ = ["load_exception", "pack_exception", "packed_outcome", "received_image"]

_PORTION = 1 << 30  # read() gives at most 2 GiB - 4 KiB at a time
_MAX_BYTES = 4 * 1024 * 1024
_MAX_CHAIN = 10


def packed_outcome(value: Any) -> Image:
    """Return the image of a value that a replica sends. Raises what pickling the value raises."""
    image = pack_image(value, linux.memory_file)
    if image.data is None:
        linux.seal(image.descriptor)
    return image


def received_image(data: bytes | None, size: int, descriptors: Sequence[int]) -> Image:
    """Return an image that a replica has sent, ready to load; take over its descriptor, if any.

    A file that can still be truncated is copied, not mapped. Raises ValueError if it is shorter
    than ``size``.
    """
    image = Image(data, size, descriptors[0] if descriptors else -1)
    if image.data is None and not _safe_to_map(image):
        try:
            image.data = _copied(image)
        finally:
            image.close()
    return image


def _safe_to_map(image: Image) -> bool:
    return (
        linux.has_fixed_size(image.descriptor) and os.fstat(image.descriptor).st_size >= image.size
    )


def _copied(image: Image) -> bytes:
    data = bytearray()
    while len(data) < image.size:
        piece = os.pread(image.descriptor, min(image.size - len(data), _PORTION), len(data))
        if not piece:
            raise ValueError(f"its file has {len(data)} bytes, not {image.size}")
        data += piece
    return bytes(data)


_ChainLink = tuple[BaseException, bool, bool]
"""An exception, whether the one before it was raised ``from`` it, and its own
``__suppress_context__``."""


def pack_exception(error: BaseException) -> tuple[bytes | None, BaseException | None]:
    """Return the packed exception, with its causes or else alone; or None and the reason."""
    try:
        chain = [(sent(each), direct, hidden) for each, direct, hidden in _chain(error)]
    except Exception:  # a class whose attributes are the user's code
        chain = [(error, False, False)]
    data, why = _packed(chain)
    return _packed(chain[:1]) if data is None and len(chain) > 1 else (data, why)


def _chain(error: BaseException) -> list[_ChainLink]:
    links: list[_ChainLink] = []
    following: BaseException | None = error
    direct = False
    while following is not None and len(links) < _MAX_CHAIN:
        if any(following is known for known, _, _ in links):
            break
        hidden = following.__suppress_context__
        links.append((following, direct, hidden))
        cause = following.__cause__  # which may be false: __bool__ is the user's code
        direct = cause is not None
        following = cause if direct else None if hidden else following.__context__
    return links


def _packed(chain: list[_ChainLink]) -> tuple[bytes | None, BaseException | None]:
    try:
        image = pack_image(chain, linux.memory_file)
        try:
            if image.data is None and image.size > _MAX_BYTES:
                return None, ValueError(f"it has {image.size} bytes; {_MAX_BYTES} are sent")
            data = image.data or os.pread(image.descriptor, image.size, 0)
        finally:
            image.close()
        arrived = load_image(Image(data, len(data)))
        same = [type(each) for each, _, _ in arrived] == [type(each) for each, _, _ in chain]
        return (data, None) if same else (None, TypeError("it unpickles as another class"))
    except BaseException as failed:  # pickling and unpickling are the user's code
        return None, failed


def load_exception(data: bytes | None) -> BaseException | None:
    """Return the original exception if its class is known or can be imported here, else None."""
    if data is None:
        return None
    known = _classes(BaseException)
    try:
        chain: list[_ChainLink] = load_image(Image(data, len(data)))
        links = list[_ChainLink]()
        for each, direct, hidden in chain:
            error = received(each)
            if error is None or not _is_known(type(error), known):
                break
            links.append((error, direct, hidden))
        return _linked(links)
    except BaseException as error:  # unpickling runs the program's code, which may call sys.exit
        if signals.from_handler(error) or isinstance(error, KeyboardInterrupt):
            raise
        return None


def _linked(links: list[_ChainLink]) -> BaseException | None:
    for (error, _, suppress), (behind, direct, _) in itertools.pairwise(links):
        if direct:
            error.__cause__ = behind
        else:
            error.__context__ = behind
        error.__suppress_context__ = suppress
    return links[0][0] if links and isinstance(links[0][0], BaseException) else None


def _classes(base: type) -> set[type]:
    """Return every subclass in this process, also those without an importable name: replicas may
    have unpickled such classes from here."""
    found, waiting = {base}, [base]
    while waiting:
        below: set[type] = set(type.__subclasses__(waiting.pop())) - found
        found |= below
        waiting += below
    return found


def _is_known(kind: type, known: set[type]) -> bool:
    """Return whether the class was known before or can be imported: unpickling may have made it."""
    if kind in known:
        return True
    value: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        value = getattr(value, name, None)
    return value is kind
