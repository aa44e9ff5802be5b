"""The launcher's set-up of ``logging``, for replicas without a script whose import repeats it.

A cell's ``logging.basicConfig`` runs in the kernel alone. Levels are sent, and handlers that write
to standard output or error; other handlers (files, sockets) stay in the launcher alone.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

__all__ = ["LoggingSetup", "apply", "capture"]

_STYLES = {"PercentStyle": "%", "StrFormatStyle": "{", "StringTemplateStyle": "$"}
_OURS = "_xmp_made"


class HandlerSetup(NamedTuple):
    """A ``logging.StreamHandler``."""

    stream: str
    """"stdout" or "stderr"."""
    level: int
    form: tuple[str | None, str | None, str] | None
    """The formatter: format, date format, style."""


class LoggerSetup(NamedTuple):
    """The settings of one logger; the root's name is empty."""

    name: str
    level: int
    propagate: bool
    disabled: bool
    handlers: tuple[HandlerSetup, ...]


class LoggingSetup(NamedTuple):
    """All loggers with settings, and the level of ``logging.disable``."""

    disable: int
    loggers: tuple[LoggerSetup, ...]


def capture() -> LoggingSetup | None:
    """Return the settings of this program; None if it has not loaded ``logging``."""
    logging: Any = sys.modules.get("logging")
    manager = getattr(getattr(logging, "root", None), "manager", None)
    if manager is None:
        return None
    named = [(name, each) for name, each in [*manager.loggerDict.items()] if hasattr(each, "level")]
    loggers = [_captured(name, each) for name, each in [("", logging.root), *named]]
    return LoggingSetup(manager.disable, tuple(each for each in loggers if each is not None))


def _captured(name: str, logger: Any) -> LoggerSetup | None:
    handlers = tuple(filter(None, map(_handler, logger.handlers)))
    if not (logger.level or handlers or logger.disabled or not logger.propagate):
        return None
    return LoggerSetup(name, logger.level, logger.propagate, logger.disabled, handlers)


def _handler(handler: Any) -> HandlerSetup | None:
    stream, form = getattr(handler, "stream", None), None
    if stream is None or type(handler).__name__ != "StreamHandler":
        return None
    if handler.formatter is not None:
        style = _STYLES.get(type(getattr(handler.formatter, "_style", None)).__name__)
        if style is not None:
            form = (handler.formatter._fmt, handler.formatter.datefmt, style)
    for name in ("stdout", "stderr"):
        if stream in (getattr(sys, name), getattr(sys, f"__{name}__")):
            return HandlerSetup(name, handler.level, form)
    return None


def _added(logger: Any, place: int) -> bool:
    """Return whether a library, on its import, has added the handler that ``place`` stands for."""
    ours = sum(getattr(each, _OURS, False) for each in logger.handlers)
    return bool(place < len(logger.handlers) - ours)


def apply(setup: LoggingSetup) -> None:
    """Apply the settings here, with this process's streams.

    Libraries set levels and add handlers when they are imported, as Lightning does, and the
    launcher's settings contain these. If a library is imported here later, our handlers are silent
    in favour of its own. Settings made after its import hold again after another call.
    """
    if not setup.loggers and not setup.disable:
        return
    import logging

    logging.disable(setup.disable)
    for name, level, propagate, disabled, handlers in setup.loggers:
        logger = logging.getLogger(name or None)
        logger.setLevel(level)
        logger.propagate, logger.disabled = propagate, disabled
        if not logger.handlers:  # else its library has added its own when it was imported
            for each in handlers:
                logger.addHandler(_made(logging, each, logger))


def _made(logging: Any, setup: HandlerSetup, logger: Any) -> Any:
    stream, library = getattr(sys, setup.stream), logger.name.partition(".")[0]
    handler = logging.StreamHandler(stream)
    if library not in sys.modules:
        place = len(logger.handlers)
        handler.addFilter(lambda _: library not in sys.modules or not _added(logger, place))
    handler.setLevel(setup.level)
    setattr(handler, _OURS, True)
    if setup.form is not None:
        fmt, datefmt, style = setup.form
        handler.setFormatter(logging.Formatter(fmt, datefmt, style))
    return handler
