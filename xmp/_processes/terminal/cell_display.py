"""In a notebook: what replicas display appears in the cell that launched them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from xmp._os import log
from xmp._processes.messages.replica import ShowInCell

from .this_cell import for_this_cell

__all__ = ["shower"]


def shower() -> Callable[[ShowInCell], None] | None:
    """What displays in the cell that runs now; None where this is no notebook."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    publisher = for_this_cell(getattr(shell, "display_pub", None))
    if publisher is None:
        return None

    def show(message: ShowInCell) -> None:
        try:
            _show(publisher, message)
        except Exception as error:  # of the front end's connection, or a bundle that it refuses
            log.warning("what a replica displays was refused: %s", error)

    return show


def _show(publisher: Any, message: ShowInCell) -> None:
    if message.kind.startswith("clear"):
        publisher.clear_output(wait=message.kind == "clear and wait")
        return
    data = {name: _opened(name, text) for name, text in zip(message.types, message.texts)}
    metadata = json.loads(message.metadata) if message.metadata else {}
    publisher.publish(
        data,
        metadata if isinstance(metadata, dict) else {},
        transient={"display_id": message.display_id} if message.display_id else {},
        update=message.kind == "update",
    )


def _opened(name: str, text: str) -> Any:
    """As front ends expect it: types that end so are JSON, all others text."""
    return json.loads(text) if name.endswith("json") else text
