"""A real notebook kernel: ``python notebook_kernel.py`` runs cells and prints what each got.

In a new process: ZeroMQ brings native threads, and a launcher with those may not fork.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["messages_of", "text_of"]

SECONDS = 30.0


def text_of(messages: list[dict[str, Any]], cell: int, name: str = "stdout") -> str:
    """What a cell got on one stream."""
    return "".join(m["text"] for m in messages if m["cell"] == cell and m["name"] == name)


def messages_of(cells: list[str], touch: dict[str, str], interrupt: str) -> list[dict[str, Any]]:
    """Run the cells one after the other; what each got, in the order in which it came.

    When one of the texts in ``touch`` is seen, the file of that name is made; ``interrupt`` is the
    text at which the kernel is interrupted.
    """
    from jupyter_client.manager import KernelManager

    manager = KernelManager(transport="ipc", ip="k")  # a relative path: sockets allow few letters
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    got: list[dict[str, Any]] = []
    sent: list[str] = []
    try:
        client.wait_for_ready(timeout=SECONDS)
        for number, code in enumerate([*cells, "pass"]):
            sent.append(client.execute(code))
            end, idle = time.monotonic() + SECONDS, False
            while not idle:
                message = client.get_iopub_msg(timeout=max(0.1, end - time.monotonic()))
                kind, content = message["msg_type"], message["content"]
                parent = message["parent_header"].get("msg_id")
                of = sent.index(parent) if parent in sent else None
                idle = kind == "status" and content["execution_state"] == "idle" and of == number
                if kind in ("stream", "error"):
                    text = content.get("text", content.get("evalue", ""))
                    name = content.get("name", "error")
                    got.append({"cell": of, "while": number, "name": name, "text": text})
                    for path in [path for words, path in touch.items() if words in text]:
                        Path(path).touch()
                    if interrupt and interrupt in text:
                        manager.interrupt_kernel()
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=False)
    return got


if __name__ == "__main__":
    given = json.loads(sys.stdin.read())
    print(json.dumps(messages_of(given["cells"], given["touch"], given["interrupt"])))
