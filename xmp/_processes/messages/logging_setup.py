"""The launcher's set-up of ``logging``, for replicas that import no script which makes it again.

A cell's ``logging.basicConfig`` runs in the kernel alone. Levels travel, and those handlers that
write to standard output or error; a file or a socket of another kind stays the launcher's.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

__all__ = ["LoggingSetup", "apply", "capture"]

_STYLES = {"PercentStyle": "%", "StrFormatStyle": "{", "StringTemplateStyle": "$"}


class HandlerSetup(NamedTuple):
    """A ``logging.StreamHandler``."""

    stream: str
    """"stdout" or "stderr"."""
    level: int
    form: tuple[str | None, str | None, str] | None
    """Of its formatter: format, date format, style."""


class LoggerSetup(NamedTuple):
    """What was set of one logger; the root's name is empty."""

    name: str
    level: int
    propagate: bool
    disabled: bool
    handlers: tuple[HandlerSetup, ...]


class LoggingSetup(NamedTuple):
    """All that was set, and the level of ``logging.disable``."""

    disable: int
    loggers: tuple[LoggerSetup, ...]


def capture() -> LoggingSetup | None:
    """What this program has set; None if it has not loaded ``logging``."""
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


def apply(setup: LoggingSetup) -> None:
    """Set the same here, with this process's streams."""
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
                logger.addHandler(_made(logging, each))


def _made(logging: Any, setup: HandlerSetup) -> Any:
    handler = logging.StreamHandler(getattr(sys, setup.stream))
    handler.setLevel(setup.level)
    if setup.form is not None:
        fmt, datefmt, style = setup.form
        handler.setFormatter(logging.Formatter(fmt, datefmt, style))
    return handler
