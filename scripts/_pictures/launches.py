"""What real launches show: their processes, a failure in a terminal, a failure in a notebook.

Times, pids, the host's name and folders are made equal, so that each run gives the same picture.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import psutil
from rich.text import Text
from svg import Picture
from terminal import notebook, screen, table

ROOT = Path(__file__).resolve().parents[2]
FAILURE = ROOT / "tests/report/texts/several.txt"
"""A real failure in a terminal: tests/report launches it and compares."""
PATIENCE = 60.0
WAITING = """\
import os, time
import xmp

def train(rank):
    open(f"in-{rank}", "w").close()
    while not os.path.exists("end"):
        time.sleep(0.02)

if __name__ == "__main__":
    xmp.spawn(train, nprocs=8, runtime="cpu")
"""
SAID = {
    "python": "the launcher: runs train.py, calls xmp.spawn",
    "xmp-template": "has the imports: one thread, no device; stays",
    "xmp-script": "has imported train.py, too; stays",
    "xmp-supervisor": "has loaded the function and its arguments; watches",
}
"""What the processes of a launch are for."""
CELL = """\
LABELS = {"cat": 0, "dog": 1}
shards = ["cat", "dog", "cat", "dog", "cat", "cow", "dog", "cat"]

def train(rank):
    print(f"rank {rank} reads {shards[rank]}.csv")
    xmp.barrier()
    label = LABELS[shards[rank]]
    return xmp.all_reduce(label)

xmp.spawn(train, nprocs=8)
"""
SAME = (
    (re.compile(r"pid \d+ on \S+(?=\))"), "pid 1234 on host"),
    (re.compile(r'"[^"\n]*/ipykernel_\d+/\d+\.py"'), '"In [2]"'),
    (re.compile(r"^\s*[\^~]+\s*\n", re.MULTILINE), ""),  # Python 3.10 has no marks below a line
    (re.compile(r"[+-]\d+\.\d{3}(?= s)"), "+0.1"),
)


def same(text: str) -> str:
    """Take away what differs from run to run."""
    for pattern, words in SAME:
        text = pattern.sub(words, text)
    return text


def until(condition: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the launch of the picture does not get there")
        time.sleep(0.02)


@contextlib.contextmanager
def launched(source: str) -> Iterator[tuple[psutil.Process, Path]]:
    """Run a script named train.py in a folder of its own; tell it to end by a file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(source)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            [sys.executable, "train.py"], cwd=folder, env=environment, stderr=subprocess.DEVNULL
        ) as process:
            try:
                yield psutil.Process(process.pid), folder
            finally:
                (folder / "end").touch()


def tree() -> str:
    """Return the processes of a launch of eight replicas, one a line, each below its parent."""
    with launched(WAITING) as (launcher, folder):
        until(lambda: len([*folder.glob("in-*")]) == 8)
        below: dict[int, list[psutil.Process]] = {}
        for process in launcher.children(recursive=True):
            below.setdefault(process.ppid(), []).append(process)
        return "\n".join(_branch(launcher, "python", below, "", ""))


def _branch(
    process: psutil.Process, name: str, below: dict[int, list[psutil.Process]], lead: str, rest: str
) -> Iterator[str]:
    said = SAID.get(name) or f"calls train({_number(name)})"
    yield f"{lead + name:<30}{said}"
    children = sorted(
        (_number(child.name()), child.name(), child) for child in below.get(process.pid, [])
    )
    for number, (_, called, child) in enumerate(children, 1):
        last = number == len(children)
        one, more = ("└─ ", "   ") if last else ("├─ ", "│  ")
        yield from _branch(child, called, below, rest + one, rest + more)


def _number(name: str) -> int:
    return int("0" + name.rpartition("-")[2]) if name[-1].isdigit() else -1


def failure() -> str:
    """Return what a launch whose replicas fail one after the other leaves in a terminal."""
    return f"$ python train.py\n{FAILURE.read_text().rstrip()}"


def cell() -> list[dict[str, str]]:
    """Return what a real notebook kernel shows of a launch in which rank 5 fails, by kind."""
    program = [sys.executable, "-m", "tests.support.notebook_kernel"]
    asked = json.dumps({"cells": ["import xmp", CELL], "touch": {}})
    done = subprocess.run(
        program, cwd=ROOT, input=asked, capture_output=True, text=True, check=True
    )
    got = [each for each in json.loads(done.stdout) if each["cell"] == 1]
    said = "".join(each["text"] for each in got if each["name"] == "stdout")
    (shown,) = (each["data"]["text/html"] for each in got if "text/html" in each.get("data", {}))
    (error,) = (each["traceback"] for each in got if each["name"] == "error")
    lines = sorted(said.splitlines())  # each rank's own; they arrive in any order
    return {"stdout": "\n".join(lines), "table": same(shown), "error": same(error)}


def _table(shown: str) -> Text:
    cells = [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in shown.split("<tr>")[1:]]
    rows = [[unescape(each) for each in row] for row in cells]
    (title,) = re.findall(r"<caption>(.*?)</caption>", shown)
    text = table(unescape(title), rows[0], rows[1:])
    text.highlight_regex(r"(?m)^.*\bcause\b.*$", "bold red")
    return text


def draw_tree() -> Picture:
    text = Text(tree())
    text.highlight_regex(r"(?<=^.{30}).*$|(?<=\n.{30}).*", "dim")
    text.highlight_regex(r"(?m)^[ │├└─]*(?P<bold>\S+)")
    return screen("The processes of a launch of eight replicas", text)


def draw_failure() -> Picture:
    text = Text(failure())
    text.highlight_regex(r"(?m)^xmp\.Replica.*$", "bold red")
    text.highlight_regex(r"^\$", "green")
    return screen("A failing launch in a terminal: the cause, and what followed from it", text)


def draw_cell() -> Picture:
    shown = cell()
    outputs = [Text(shown["stdout"]), _table(shown["table"]), Text.from_ansi(shown["error"])]
    return notebook("A notebook cell with eight replicas of which one fails", CELL, outputs, 2)


DRAWINGS = {"process-tree": draw_tree, "failure": draw_failure, "cell": draw_cell}
