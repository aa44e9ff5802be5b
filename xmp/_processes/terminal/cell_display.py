"""Shows the displays of replicas in the notebook's cell that launched them."""

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
    """Return a function that displays in the cell that runs now; None if this is no notebook."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    publisher = for_this_cell(getattr(shell, "display_pub", None))
    if publisher is None:
        return None

    def show(message: ShowInCell) -> None:
        try:
            _show(publisher, message)
        except Exception as error:  # the front end's connection fails, or it refuses the bundle
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
    """Return the data as front ends expect it: types that end in "json" as JSON, others as text."""
    return json.loads(text) if name.endswith("json") else text
