"""Every message class by its name, and the table of a receiver's handlers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from . import fork_server, hosts, launch, replica

__all__ = ["CATALOG", "Handlers", "Message"]

Message = tuple[Any, ...]
"""A NamedTuple of this package."""
M = TypeVar("M", bound=Message)
P = ParamSpec("P")

CATALOG: dict[str, Any] = {
    name: value
    for module in (launch, replica, fork_server, hosts)
    for name, value in vars(module).items()
    if inspect.isclass(value) and value.__module__ == module.__name__
}


class Handlers(Generic[P]):
    """The function that handles each kind of message that a process may receive."""

    def __init__(self) -> None:
        self._table: dict[type[Message], Callable[..., None]] = {}

    def on(self, kind: type[M], handle: Callable[Concatenate[M, P], None]) -> None:
        """Call ``handle(message, ...)`` for messages of this kind."""
        self._table[kind] = handle

    def handle(self, message: Message, *args: P.args, **kwargs: P.kwargs) -> None:
        """Handle one message. Raises TypeError for a kind without a handler."""
        handle = self._table.get(type(message))
        if handle is None:
            raise TypeError(f"unexpected message {type(message).__name__}")
        handle(message, *args, **kwargs)
