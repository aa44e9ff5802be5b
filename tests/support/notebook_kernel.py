"""A real notebook kernel: ``python notebook_kernel.py`` runs cells and prints what each got.

In a new process: ZeroMQ brings native threads, and a launcher with those may not fork. Each line
that it reads asks for cells, all in one kernel; it answers with a line, and ends with its input.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["BEGIN", "RESTART", "displays_of", "text_of"]

SECONDS = 100.0
"""The patience with one cell, and with the start."""
RESTART = "%restart"
"""A cell that restarts the kernel, as the button of a notebook does."""
BEGIN = """
import os, sys, time
import xmp

def start(fn, **options):
    return xmp.spawn(fn, **{"nprocs": 2, "runtime": "cpu", "progress": False, **options})

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)
"""
"""The first cell of most notebooks; what a slow host shows of a start is not in their way."""
SHOWN = {
    "display_data": "display",
    "update_display_data": "update",
    "clear_output": "clear",
}


def text_of(messages: list[dict[str, Any]], cell: int, name: str = "stdout") -> str:
    """What a cell got on one stream."""
    return "".join(m["text"] for m in messages if m["cell"] == cell and m["name"] == name)


def displays_of(
    messages: list[dict[str, Any]], cell: int, name: str = "display"
) -> list[dict[str, Any]]:
    """The data, by MIME type, of what a cell displayed (or of the updates)."""
    return [m["data"] for m in messages if m["cell"] == cell and m["name"] == name]


class _Notebook:
    """A kernel, and what its cells have got."""

    def __init__(self) -> None:
        from jupyter_client.manager import KernelManager

        # A relative path: sockets allow few letters.
        self.manager = KernelManager(transport="ipc", ip="k")
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self._begin({})

    def _begin(
        self,
        touch: dict[str, str],
        interrupt: str = "",
        type_in: tuple[str, ...] = (),
        seconds: float = SECONDS,
    ) -> None:
        self.got: list[dict[str, Any]] = []
        self.sent: list[str] = []
        self._touch, self._interrupt, self._type_in = touch, interrupt, list(type_in)
        self._seconds = seconds

    def messages_of(self, cells: list[str], **options: Any) -> list[dict[str, Any]]:
        """Run the cells one after the other; what each got, in the order in which it came.

        When one of the texts in ``touch`` is seen, the file of that name is made; ``interrupt`` is
        the text at which the kernel is interrupted; ``type_in`` are lines for what asks for input;
        a cell may take so many ``seconds``.
        """
        self._begin(**options)
        for path in self._touch.values():
            Path(path).unlink(missing_ok=True)
        for code in [*cells, "pass"]:
            self.run(code)
        return self.got

    def restart(self) -> None:
        self.sent.append("")
        self.manager.restart_kernel()
        self.client.wait_for_ready(timeout=self._seconds)

    def run(self, code: str) -> None:
        if code == RESTART:
            self.restart()
            return
        number = len(self.sent)
        self.sent.append(self.client.execute(code, allow_stdin=True))
        end, idle = time.monotonic() + self._seconds, False
        while not idle:
            self._answer()
            if time.monotonic() > end:
                raise TimeoutError(f"cell {number} does not end: {self.got}")
            try:
                message = self.client.get_iopub_msg(timeout=0.1)
            except Exception as error:  # queue.Empty, which jupyter_client 7 wraps
                if type(error).__name__ != "Empty":
                    raise
                continue
            idle = self._take(message, number)

    def _answer(self) -> None:
        """Type the next line where the kernel asks for one."""
        try:
            self.client.get_stdin_msg(timeout=0)
        except Exception as error:
            if type(error).__name__ != "Empty":
                raise
        else:
            self.client.input(self._type_in.pop(0))

    def _take(self, message: dict[str, Any], number: int) -> bool:
        """Note a message; True where the cell of this number is done."""
        kind, content = message["msg_type"], message["content"]
        parent = message["parent_header"].get("msg_id")
        of = self.sent.index(parent) if parent in self.sent else None
        noted: dict[str, Any] = {"cell": of, "while": number, "at": time.monotonic()}
        if kind == "stream":
            self._note({**noted, "name": content["name"], "text": content["text"]})
        elif kind == "error":
            self.got.append({**noted, "name": "error", "text": content["evalue"],
                             "traceback": "\n".join(content["traceback"])})  # fmt: skip
        elif kind in SHOWN:
            shown = {"data": content.get("data", {}), "transient": content.get("transient", {})}
            self._note({**noted, "name": SHOWN[kind], "text": str(shown["data"]), **shown})
        return kind == "status" and content["execution_state"] == "idle" and of == number

    def _note(self, noted: dict[str, Any]) -> None:
        self.got.append(noted)
        for path in [path for words, path in self._touch.items() if words in noted["text"]]:
            Path(path).touch()
        if self._interrupt and self._interrupt in noted["text"]:
            self.manager.interrupt_kernel()


def main() -> None:
    notebook = _Notebook()
    try:
        notebook.client.wait_for_ready(timeout=SECONDS)
        for line in sys.stdin:
            print(json.dumps(notebook.messages_of(**json.loads(line))), flush=True)
    finally:
        notebook.client.stop_channels()
        notebook.manager.shutdown_kernel(now=False)


if __name__ == "__main__":
    main()
