"""The texts of failed launches, as a user sees them: real launches against golden files.

``python tests/report/test_failure_texts.py [NAME]...`` writes ``tests/report/texts/*.txt`` again,
as root for the one in a memory control group; read the difference. Pids, times, sizes and the
places of installations are made equal.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest

import xmp
from tests.support.memory_group import memory_group
from tests.support.stage import Outcome, Stage

pytestmark = pytest.mark.failing

FAILURES = Path(__file__).parent / "texts"
COLUMNS = 100
LINES = 25
# The first line, and one that says how others failed: both quote a message and may go to a log.
WHOLE = re.compile(r"xmp\.Replica\w+: |  ranks? [\d, -]+ \(")

HEAD = """\
import ctypes, os, signal, sys, threading, time
import xmp

def wait():
    while True:
        signal.pause()
"""
CALL = """
if __name__ == "__main__":
    xmp.spawn(train, nprocs=4, runtime="cpu")
"""

SCRIPTS = {
    "raised": """
def load(path):
    raise FileNotFoundError(2, "No such file or directory", path)

def train(rank):
    if rank == 2:
        load("shard-2.bin")
    wait()
""",
    "raised-from-a-cause-with-notes": """
def train(rank):
    if rank != 1:
        wait()
    try:
        {}["labels"]
    except KeyError as error:
        failed = ValueError("shard 7 has no labels")
        failed.add_note("seen in batch 12")
        raise failed from error
""",
    "raised-a-group": """
def train(rank):
    if rank == 1:
        raise ExceptionGroup("2 of 8 loaders failed", [OSError(5, "disk"), ValueError("shard 3")])
    wait()
""",
    "raised-in-a-recursion": """
def parse(tree):
    return walk(tree)

def walk(tree):
    return parse(tree)

def train(rank):
    if rank == 0:
        parse([])
    wait()
""",
    "exit-code": """
def train(rank):
    if rank == 3:
        print("no license for 4 chips", file=sys.stderr)
        os._exit(134)
    wait()
""",
    "crashed": """
def train(rank):
    if rank == 1:
        print("kernel: tile 3 of 7", file=sys.stderr)
        ctypes.string_at(0)
    wait()
""",
    "killed-from-outside": """
def train(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    wait()
""",
    "malformed-message": """
def train(rank):
    if rank == 1:
        for number in range(3, 100):
            try:
                os.write(number, b"garbage")
            except OSError:
                pass
    wait()
""",
    "out-of-memory": """
def train(rank):
    if rank == 1:
        group = os.environ["GROUP"]
        for name in ("memory.limit_in_bytes", "memory.max"):
            if os.path.exists(f"{group}/{name}"):
                open(f"{group}/{name}", "w").write(str(200 << 20))
        if os.path.exists(f"{group}/memory.swap.max"):
            open(f"{group}/memory.swap.max", "w").write("0")
        eaten = []
        while True:
            eaten.append(os.urandom(1 << 20))
    wait()

if __name__ == "__main__":
    open(os.environ["GROUP"] + "/cgroup.procs", "w").write(str(os.getpid()))
""",
    "interrupted": """
def train(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGINT)
    wait()
""",
    "several": """
def train(rank):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if rank == 1:
        os.symlink(f"/proc/{os.getpid()}", "failing")
        raise ValueError("loss is nan in step 1200")
    while not os.path.lexists("failing") or os.path.exists("failing"):
        time.sleep(0.001)
    raise RuntimeError(f"[gloo/pair.cc:535] Connection closed by peer [127.0.0.1]:4{rank}")
""",
    "result": """
def train(rank):
    return threading.Lock() if rank == 1 else rank
""",
    "timeout": """
def load_batch():
    wait()

def train(rank):
    if rank == 3:
        load_batch()
    wait()

if __name__ == "__main__":
    xmp.spawn(train, nprocs=4, runtime="cpu", timeout=6)
""",
    "joined": """
def train(rank):
    if rank == 1:
        for step in range(3):
            print(f"\\r{step + 1}/3 batches", end="", file=sys.stderr, flush=True)
        print("\\nlast batch is empty", file=sys.stderr)
        sys.exit(3)
    wait()

if __name__ == "__main__":
    context = xmp.spawn(train, nprocs=2, runtime="cpu", join=False)
    context.join()
""",
    "hang": """
def train(rank):
    wait()

if __name__ == "__main__":
    xmp.spawn(train, nprocs=2, runtime="cpu", hang_timeout=1)
""",
    "start-timeout": """
class Weights:
    def __reduce__(self):
        return Weights.download, ("weights.bin",)

    def download(path):
        wait()

def train(rank, weights):
    pass

if __name__ == "__main__":
    call = {"args": (Weights(),), "start_method": "spawn", "start_timeout": 4}
    xmp.spawn(train, nprocs=2, runtime="cpu", **call)
""",
    "restarted": """
def train(rank):
    if rank == 1:
        raise OSError(110, "store, try " + "12"[xmp.restart_count()])
    wait()

if __name__ == "__main__":
    xmp.spawn(train, nprocs=2, runtime="cpu", max_restarts=1)
""",
    "diverged": """
def reduce_all():
    wait()

def train(rank):
    if rank in (1, 2):
        return
    reduce_all()

if __name__ == "__main__":
    xmp.spawn(train, nprocs=4, runtime="cpu", hang_timeout=1)
""",
    "loading": """
def labels():
    raise ModuleNotFoundError("No module named 'labels'")

def train(rank):
    wait()

if __name__ != "__main__":
    labels()
""",
    "plan": """
def train(rank):
    pass

if __name__ == "__main__":
    xmp.spawn(train, nprocs=4, runtime="cpu", env={"RANK": "0"})
""",
}


LIMITED = {"timeout": ("timeout=6", " 6 s after"), "start-timeout": ('timeout": 4', " 4 s after")}
"""Scripts that wait for their limit: what they and their texts say of it."""


def fails(name: str, folder: Path) -> Outcome:
    """Run the script of this name as a user would."""
    source = HEAD + SCRIPTS[name]
    if "xmp.spawn" not in source:
        source += CALL
    stage = Stage(folder, path=())
    stage.write(source, "train.py")
    if name in LIMITED:
        return fails_sooner(name, stage, source)
    if name != "out-of-memory":
        return stage.python("train.py")
    with memory_group() as group:
        return stage.python("train.py", env={"GROUP": str(group)})


def fails_sooner(name: str, stage: Stage, source: str) -> Outcome:
    """Run it with the first of shorter limits that gives its text, which names its own limit."""
    option, words = LIMITED[name]
    number = words.split()[0]
    for limit in ("1", "2", "4", "8", "16"):  # where the machine is busy, the first are too short
        stage.write(source.replace(option, option.replace(number, limit)), "train.py")
        done = stage.python("train.py")
        err = re.sub(rf"timeout={limit}(?=[:)])", f"timeout={number}", done.err)
        err = err.replace(words.replace(number, limit), words)
        done = dataclasses.replace(done, err=err)
        if text_of(done, stage.folder) == (FAILURES / f"{name}.txt").read_text():
            break
    return done


SAME = [
    (re.compile(r"^xmp: the start took .*\n", re.MULTILINE), ""),  # on a busy machine
    (re.compile(r"^\s*[\^~]+\s*\n", re.MULTILINE), ""),  # Python 3.10 has no marks below a line
    (re.compile(re.escape(str(Path(xmp.__file__).parents[1])) + "/"), "…/"),
    (re.compile(r'(")[^"\n]*/lib/python3\.\d+/'), r"\1…/"),
    (re.compile(r'(File "…/[^"\n]*", line )\d+'), r"\1…"),
    (re.compile(r"\b(pid|process) \d{2,}"), r"\1 1234"),
    (re.compile(rf"\bon {re.escape(os.uname().nodename)}\b"), "on host"),
    (re.compile(r"0x[0-9a-f]{6,}( \[.*\])?"), "0x7f00"),
    (re.compile(r"[+-]\d+\.\d{3}(?= )"), "+0.012"),
    (re.compile(r"(\[127\.0\.0\.1\]:4)\d"), r"\g<1>0"),  # of the first that failed
    (re.compile(r"\d+ MiB"), "123 MiB"),
    (re.compile(r"\d{4}-\d\d-\d\d [\d:]+, after [\d.]+ s"), "2026-11-21 10:00:00, after 0.2 s"),
    # How deep the replica was says how often, and at which of the two functions it ends.
    (
        re.compile(r"repeated \d+ more times\]\n(  File .*, in parse\n    return walk.*\n)?"),
        "repeated 490 more times]\n",
    ),
]


def text_of(done: Outcome, folder: Path) -> str:
    """What the program wrote, without what differs from run to run."""
    text = done.err.replace(f"{folder}/", "")
    for pattern, same in SAME:
        text = pattern.sub(same, text)
    return text


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.root) if name == "out-of-memory" else name
        for name in SCRIPTS
    ],
)
def test_a_failure_reads_as_it_is_written_down(name: str, tmp_path: Path) -> None:
    if sys.version_info < (3, 11) and ("notes" in name or "group" in name):
        pytest.skip("notes and groups came with Python 3.11")
    done = fails(name, tmp_path)
    assert done.code == 1
    assert text_of(done, tmp_path) == (FAILURES / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_text_fits_a_terminal_and_begins_with_the_user(name: str) -> None:
    lines = (FAILURES / f"{name}.txt").read_text().splitlines()
    assert [line for line in lines if len(line) > COLUMNS and not WHOLE.match(line)] == []
    assert not [line for line in lines if '"…/xmp/' in line]
    assert len(lines) <= LINES, f"{len(lines)} lines are more than anybody reads at night"


def test_no_text_is_left_over() -> None:
    assert {path.stem for path in FAILURES.glob("*.txt")} == set(SCRIPTS)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or SCRIPTS:
        with tempfile.TemporaryDirectory() as place:
            written = text_of(fails(chosen, Path(place)), Path(place))
        (FAILURES / f"{chosen}.txt").write_text(written)
