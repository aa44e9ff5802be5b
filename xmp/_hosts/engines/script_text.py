"""The script of a driver as text, for hosts that need not have its file."""

from __future__ import annotations

import functools
import os
import sys
import threading
import tokenize

from xmp._os import log
from xmp._payload.script import MainSource

__all__ = ["as_text"]


def as_text(source: MainSource | None) -> MainSource | None:
    """Return the script, as of the first launch, for a host that need not have its file."""
    if source is None or source.kind == "text":
        return source
    text = _text(source)
    if text is None:  # compiled files alone: hosts import it by its name
        return source
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    package = spec.parent if source.kind == "name" and spec is not None else None
    return source._replace(kind="text", value=text, package=package)


@functools.lru_cache(maxsize=8)  # one host, too, imports a script once for all launches
def _text(source: MainSource) -> str | None:
    if source.kind == "name":
        loader = getattr(getattr(sys.modules["__main__"], "__spec__", None), "loader", None)
        text: str | None = loader.get_source(source.value) if loader is not None else None
    else:
        with tokenize.open(source.path) as file:
            text = file.read()
    if text is not None and _has_changed(text):
        name = os.path.basename(source.path)
        log.warning("%s has changed since this program began: hosts run it as it is now", name)
    return text


def _has_changed(text: str) -> bool:
    """Return whether the script that runs in the main thread was compiled from another text."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals is vars(sys.modules["__main__"]):
            try:
                code = compile(text, frame.f_code.co_filename, "exec", dont_inherit=True)
            except (SyntaxError, ValueError):
                return True  # it is being edited
            return code != frame.f_code
        frame = frame.f_back
    return False
