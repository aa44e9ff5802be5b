"""In a notebook what replicas write appears in the cell that launched them, as it comes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.notebook_kernel import BEGIN, text_of
from tests.support.stage import Stage

pytestmark = [pytest.mark.first_pass, pytest.mark.failing]

Kernel = Callable[..., list[dict[str, Any]]]


@pytest.mark.parametrize("method", ["forkserver", "spawn"])  # a kernel has native threads
def test_it_appears_while_the_cell_runs(method: str, shared_kernel: Kernel) -> None:
    cells = (
        BEGIN,
        f"""
def fn(rank):
    print('before', rank)
    print('error', rank, file=sys.stderr)
    if rank == 0:
        wait_for('seen'); wait_for('seen too')
    print('after', rank)
print(list(start(fn, start_method={method!r})))""",
    )
    messages = shared_kernel(*cells, touch={"before 0": "seen", "error 0": "seen too"})
    out, err = text_of(messages, 1), text_of(messages, 1, "stderr")
    assert sorted(out.splitlines()) == sorted(
        ["before 0", "before 1", "after 0", "after 1", "[None, None]"]
    ), messages
    assert out.splitlines()[-1] == "[None, None]"  # all of it is there when spawn returns
    assert sorted(line for line in err.splitlines() if line.startswith("error")) == [
        "error 0", "error 1",
    ]  # fmt: skip


def test_no_letter_is_torn_and_the_order_is_kept(shared_kernel: Kernel) -> None:
    cells = (
        BEGIN,
        """
def fn(rank):
    for n in range(20000):
        print('äöü€😀' * 3, n)
start(fn, prefix=True, show='1', log_dir='in order')
print('done')""",
    )
    lines = text_of(shared_kernel(*cells), 1).splitlines()
    assert lines == [*(f"[1] {'äöü€😀' * 3} {n}" for n in range(20000)), "done"]


def test_a_launch_that_is_not_joined_writes_to_its_own_cell(shared_kernel: Kernel) -> None:
    cells = (
        BEGIN,
        """
def fn(rank):
    print('one', rank)
    wait_for('seen')
    print('two', rank)
context = start(fn, join=False)""",
        "wait_for('two seen')",  # while this one runs and no thread is in join()
        "context.results()\nprint('three')",
        "import threading\nprint([t.name for t in threading.enumerate() if 'xmp' in t.name])",
    )
    messages = shared_kernel(*cells, touch={"one 0": "seen", "two 0": "two seen"})
    said = sorted(text_of(messages, 1).splitlines())
    assert said == ["one 0", "one 1", "two 0", "two 1"], messages
    assert text_of(messages, 3) == "three\n"
    assert text_of(messages, 4) == "[]\n"


def test_output_that_the_cell_redirects_goes_there(shared_kernel: Kernel) -> None:
    cells = (
        BEGIN,
        """
import contextlib, io
text = io.StringIO()
with contextlib.redirect_stdout(text):
    start(lambda rank: print('hello', rank))
print(sorted(text.getvalue().splitlines()))""",
    )
    assert text_of(shared_kernel(*cells), 1) == "['hello 0', 'hello 1']\n"


def test_an_interrupted_cell_has_the_last_words(shared_kernel: Kernel) -> None:
    cells = (
        BEGIN,
        """
def fn(rank):
    try:
        print('here', flush=True) if rank == 0 else None
        wait_for('never')
    finally:
        print('the last words of', rank)
start(fn)""",
        "print(list(start(lambda rank: rank)))",
    )
    messages = shared_kernel(*cells, interrupt="here")
    said = text_of(messages, 1)
    assert "the last words of 0\n" in said, messages
    assert [m["cell"] for m in messages if m["name"] == "error"] == [1]
    assert text_of(messages, 2) == "[0, 1]\n"


def test_a_flood_that_is_not_shown_does_not_grow_the_kernel(
    shared_kernel: Kernel, shared_stage: Stage
) -> None:
    cells = (
        BEGIN,
        """
import psutil
start(lambda rank: print('warm'))
def fn(rank, kernel):
    grown, before = 0, psutil.Process(kernel).memory_info().rss
    for _ in range(100 if rank == 0 else 0):
        os.write(1, b'0123456789abcde,' * 65536)
        grown = max(grown, psutil.Process(kernel).memory_info().rss - before)
    print('the other')
    return grown >> 20
grown = start(fn, args=(os.getpid(),), log_dir='logs', show=1)[0]""",
        "print(grown)",
    )
    messages = shared_kernel(*cells)
    assert text_of(messages, 1).endswith("the other\n")
    log = shared_stage.folder / "logs" / "rank0.stdout.log"
    assert log.stat().st_size == (100 << 20) + 10
    # What is shown a kernel keeps itself: IPython has it in its history.
    assert int(text_of(messages, 2)) < 16


def test_a_stream_that_takes_nothing_holds_no_replica_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from xmp._processes.terminal.notebook_output import CellOutput

    closed, open_ = io.StringIO(), io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    monkeypatch.setattr(sys, "stderr", open_)
    pump = CellOutput(b"")
    out, err = pump.ends()
    for _ in range(100):
        os.write(out, b"x" * 4096)  # more than a pipe holds
    os.write(err, "€".encode()[:2])
    os.write(err, "€".encode()[2:])
    os.close(out)
    pump.finish()  # although another process still holds an end
    os.close(err)
    assert open_.getvalue() == "€"


def test_a_forked_child_holds_no_end() -> None:
    from xmp._processes.terminal.notebook_output import CellOutput

    pump = CellOutput(b"")
    ends = pump.ends()
    before = len(os.listdir("/proc/self/fd"))
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writes, b"%d" % len(os.listdir("/proc/self/fd")))
        os._exit(0)
    os.waitpid(pid, 0)
    child = int(os.read(reads, 100))
    for descriptor in (reads, writes, *ends):
        os.close(descriptor)
    pump.finish()
    assert child == before + 2 - 4


def test_launches_that_have_ended_hold_no_pipes(shared_kernel: Kernel) -> None:
    cells = (
        BEGIN,
        """
def fn(rank):
    print('said', rank)

def held():
    start(fn)
    numbers = os.listdir('/dev/fd')
    paths = [f'/dev/fd/{number}' for number in numbers]
    return sum(os.readlink(path).startswith('pipe:') for path in paths if os.path.exists(path))

first = held()
print('more pipes:', max(held() for _ in range(3)) - first)
""",
    )
    assert "more pipes: 0\n" in text_of(shared_kernel(*cells), 1)
