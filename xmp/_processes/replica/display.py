"""An IPython shell that formats a replica's displays and sends them to the notebook's cell."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from typing import Any

from IPython.core.displaypub import DisplayPublisher
from IPython.core.events import EventManager, available_events
from IPython.core.formatters import DisplayFormatter

from xmp import _inside
from xmp._processes.messages.cell_frames import MOST_BYTES
from xmp._processes.system import stdio
from xmp._processes.system.stdio import flush

__all__ = ["new_shell"]


_WIDGET = "application/vnd.jupyter.widget-view+json"


def new_shell(kind: Any) -> Any:
    """Return a shell of this class without history, magics and terminal; do not run its __init__.

    ``__init__`` would replace the module ``__main__`` and start a thread.
    """
    shell = kind.__new__(type("ReplicaShell", (kind,), {"__init__": lambda self: None}))
    shell.display_formatter = DisplayFormatter()
    shell.display_pub = _Publisher()
    shell.events = EventManager(shell, available_events)  # matplotlib registers its own there
    shell.configurables = []
    shell.user_ns = {}
    return shell


class _Publisher(DisplayPublisher):  # type: ignore[misc]
    """A publisher that sends displays to the supervisor; in a child of a replica it prints them."""

    def __init__(self) -> None:
        super().__init__()

    def publish(
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        source: Any = None,
        *,
        transient: Mapping[str, Any] | None = None,
        update: bool = False,
        **_: Any,
    ) -> None:
        display_id = str((transient or {}).get("display_id") or "")
        # A widget's model is a comm of this process: the notebook would show a view without it.
        texts = {name: _as_text(value) for name, value in data.items() if name != _WIDGET}
        about = json.dumps(metadata) if metadata else ""
        size = sum(map(len, texts.values())) + len(about)
        if size > MOST_BYTES:
            given, most = size / 2**20, MOST_BYTES // 2**20
            words = f"xmp: what is displayed here has {given:.0f} MiB; a cell gets at most {most}\n"
            sys.stderr.write(words)
            texts, about = {"text/plain": texts.get("text/plain", "")[:10_000]}, ""
        kind = "update" if update else "display"
        if not _send(kind, display_id, texts, about):
            print(texts.get("text/plain", ""))  # noqa: T201  as display() does without a shell

    def clear_output(self, wait: bool = False) -> None:
        _send("clear and wait" if wait else "clear", "", {}, "")


def _as_text(value: Any) -> str:
    """Return the value as in a message to a front end: bytes in base64, all but text as JSON."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return value if isinstance(value, str) else json.dumps(value)


def _send(kind: str, display_id: str, texts: Mapping[str, str], metadata: str) -> bool:
    channel: Any = _inside.channel()
    if channel is None or _inside.whose_child():
        return False
    flush()
    stdio.flush_c()
    channel.show_in_cell(kind, display_id, [*texts], [*texts.values()], metadata)
    return True
