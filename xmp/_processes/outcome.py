"""What a replica tells of its end: a result, an exit code, or an exception in every form."""

from __future__ import annotations

import sys
import time
from typing import Any

from xmp._payload import pack_image
from xmp._types import Framework

from . import kernel
from .account import Timeline
from .channel import Channel
from .exceptions import pack_exception
from .tracebacks import cut, name_of, told, words_of

__all__ = ["UNSENDABLE", "exit_code", "failed_code", "record", "send_result"]

UNSENDABLE = "cannot be sent back"
_WORDS = 32 * 1024


def send_result(channel: Channel, result: Any, timeline: Timeline, imported: list[str]) -> None:
    try:
        image = pack_image(result, kernel.memory_file)
    except Exception as error:
        kind = type(result).__name__
        raise TypeError(f"the result ({kind}) {UNSENDABLE}: {error}") from error
    descriptors = [image.descriptor] if image.data is None else []
    now = time.monotonic_ns()
    channel.tell(
        "returned", now, image.data, image.size, timeline, imported, descriptors=descriptors
    )
    image.close()


def exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return 1


def failed_code(framework: Framework | None, error: BaseException) -> int:
    """The exit code after ``error``; a framework may have one of its own, and words for it."""
    own = getattr(framework, "failed", None)
    try:
        return int(own(error)) if own is not None and isinstance(error, Exception) else 1
    except Exception:  # a closed stderr, an error without words: the report still has to go out
        return 1


def record(error: BaseException) -> tuple[Any, ...]:
    """What is told of an exception: names, words, traceback, and itself where it travels."""
    words = cut(words_of(error), _WORDS)
    interrupted = isinstance(error, KeyboardInterrupt)
    return name_of(error), words, told(error), pack_exception(error), interrupted
