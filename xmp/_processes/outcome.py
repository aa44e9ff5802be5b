"""What a replica tells of its end: a result, an exit code, or an exception in every form."""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import Any

from xmp._payload import load_image, pack_image
from xmp._types import Framework

from . import kernel
from .account import Timeline
from .channel import Channel

__all__ = ["UNSENDABLE", "exit_code", "failed_code", "record", "send_result"]

UNSENDABLE = "cannot be sent back"
_TEXT_LIMIT = 32 * 1024
_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


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
    name = type(error).__qualname__
    if type(error).__module__ not in ("builtins", "__main__", "__mp_main__"):
        name = f"{type(error).__module__}.{name}"
    text = "".join(traceback.format_exception(type(error), error, _users_part(error)))
    if len(text) > _TEXT_LIMIT:
        half = _TEXT_LIMIT // 2
        text = f"{text[:half]}\n  … {len(text) - _TEXT_LIMIT} characters left out …\n{text[-half:]}"
    try:
        words = str(error)
    except Exception:
        words = "(its message cannot be shown)"
    interrupted = isinstance(error, KeyboardInterrupt)
    return name, words[:_TEXT_LIMIT], text, _travelling(error), interrupted


def _users_part(error: BaseException) -> Any:
    """The traceback from the user's first frame on."""
    place = error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER):
        place = place.tb_next
    return place if place is not None else error.__traceback__


def _travelling(error: BaseException) -> bytes | None:
    """The pickled exception, if what arrives is one as well."""
    try:
        image = pack_image(error, kernel.memory_file)
        if image.data is None:
            image.close()
            return None
        return image.data if isinstance(load_image(image), BaseException) else None
    except BaseException:
        return None
