"""Output that comes faster than it is read, or is never read: complete, and no replica waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.launching import BEGIN, launch
from tests.support.stage import Script, Stage
from tests.support.waiting import until

pytestmark = [pytest.mark.first_pass, pytest.mark.failing]


def floods(rank: int, megabytes: int, folder: Path) -> tuple[int, int]:
    """Rank 0 writes that much, and on until the other has written more than a pipe holds."""
    served, written = folder / "served", 0
    if rank == 0:
        while written < megabytes or not (served.exists() or written == 10 * megabytes):
            os.write(1, b"0123456789abcde\n" * 65536)
            written += 1
    else:
        for n in range(20_000):
            print("line", n)
        sys.stdout.flush()
        served.touch()
    return written, psutil.Process(os.getppid()).memory_info().rss


def test_a_flood_is_complete_and_delays_no_replica(method: str, tmp_path: Path) -> None:
    before = psutil.Process().memory_info().rss
    small = launch(method, floods, 1, tmp_path, log_dir=tmp_path, show="none")[0][1]
    (tmp_path / "served").unlink()
    (written, used), _ = launch(method, floods, 200, tmp_path, log_dir=tmp_path, show=[1])
    assert 200 <= written < 2000, "the other got through while this one wrote"
    assert (tmp_path / "rank0.stdout.log").stat().st_size == written << 20
    assert len((tmp_path / "rank1.stdout.log").read_text().splitlines()) == 20_000
    assert used - small < 8 << 20
    assert psutil.Process().memory_info().rss - before < 50 << 20


SLOW = (
    BEGIN
    + """
def fn(rank):
    for n in range(40000):
        print("x" * 99)
    os.replace(sys.argv[2] + "/mark", sys.argv[2] + "/mark%d" % rank) if rank == 0 else None

if __name__ == "__main__":
    start(fn, prefix=True, log_dir=sys.argv[2], grace=0.5)
    print("done")
"""
)


def slow(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A launch whose standard output is not read yet; returns when rank 0 has written all."""
    (tmp_path / "slow.py").write_text(SLOW)
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "mark").touch()
    command = [sys.executable, str(tmp_path / "slow.py"), "forkserver", str(logs)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path)
    until((logs / "mark0").exists, 20)
    return process


def test_with_a_file_a_slow_reader_delays_no_replica_and_gets_everything(tmp_path: Path) -> None:
    with slow(tmp_path) as process:
        assert process.stdout is not None
        lines = process.stdout.read().decode().splitlines()
    assert lines.pop() == "done"
    assert len(lines) == 80000
    for rank in (0, 1):
        assert lines.count(f"[{rank}] " + "x" * 99) == 40000
        assert (tmp_path / "logs" / f"rank{rank}.stdout.log").stat().st_size == 4_000_000


def test_with_a_file_a_reader_that_goes_away_takes_nothing_with_it(tmp_path: Path) -> None:
    with slow(tmp_path) as process:
        assert process.stdout is not None
        process.stdout.close()
    for rank in (0, 1):
        assert (tmp_path / "logs" / f"rank{rank}.stdout.log").stat().st_size == 4_000_000


WRITES = "import sys\nwhile True:\n    print(*range(99), file=getattr(sys, sys.argv[1]))\n"


@pytest.mark.parametrize(
    ("stream", "options"), [("stderr", ()), ("stdout", ("--prefix", "yes"))], ids=str
)
def test_a_reader_that_goes_away_ends_who_writes_to_it(
    stream: str, options: tuple[str, ...], stage: Stage
) -> None:
    """As the pipe itself would: EPIPE, which Python raises as BrokenPipeError."""
    stage.write(WRITES, "writes.py")
    command = (sys.executable, "-m", "xmp", "run", "-n", "2", *options, "writes.py", stream)
    process = stage.start_command(*command, **{stream: subprocess.PIPE})
    pipe = getattr(process, stream)
    assert pipe.readline()
    pipe.close()
    assert process.wait(30) == (1 if stream == "stdout" else 128 + signal.SIGPIPE)
    stage.gone()


def test_a_killed_launcher_leaves_what_had_been_written(tmp_path: Path) -> None:
    source = BEGIN + (
        "import signal\n"
        "def fn(rank):\n"
        "    open(f'begun{rank}-{os.getppid()}', 'w').close()\n"
        "    while not os.path.exists('go'):\n        time.sleep(0.01)\n"
        "    os.write(1, b'x' * 60000)\n"
        "    open(f'written{rank}', 'w').close()\n"
        "    while True:\n        signal.pause()\n"
        "if __name__ == '__main__':\n    start(fn, log_dir='logs', show='none')\n"
    )
    (tmp_path / "train.py").write_text(source)
    command = [sys.executable, "train.py", "forkserver"]
    with subprocess.Popen(command, cwd=tmp_path) as process:
        until(lambda: len(list(tmp_path.glob("begun*"))) == 2)
        supervisor = psutil.Process(int(next(tmp_path.glob("begun0-*")).name[7:]))
        supervisor.suspend()  # so that it has read nothing when it hears of the launcher's end
        (tmp_path / "go").touch()
        until(lambda: len(list(tmp_path.glob("written*"))) == 2)
        process.kill()  # the end of its lifeline continues the supervisor
    for rank in (0, 1):
        log = tmp_path / "logs" / f"rank{rank}.stdout.log"
        until(lambda log=log: log.stat().st_size == 60000)


def test_a_file_that_takes_no_more_ends_no_replica(script: Script, tmp_path: Path) -> None:
    source = BEGIN + (
        "import resource\n"
        "def fn(rank):\n    os.write(1, b'x' * 99 + b'\\n')\n    os.write(1, b'y' * 99 + b'\\n')\n"
        "if __name__ == '__main__':\n"
        "    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (150, hard))\n"
        "    start(fn, log_dir='logs', show='0')\n"
    )
    done = script(source, "forkserver", cwd=tmp_path)
    assert done.code == 0, done
    assert done.out == "x" * 99 + "\n" + "y" * 99 + "\n"
    for rank in (0, 1):
        assert (tmp_path / "logs" / f"rank{rank}.stdout.log").stat().st_size == 150
        assert f"rank{rank}.stdout.log ends here: File too large" in done.err


UNREAD = (
    BEGIN
    + """
from xmp._processes.launcher import deadlines

def fn(rank):
    os.write(1, b"x" * 200_000)

if __name__ == "__main__":
    deadlines._TO_END = 1.0  # seconds
    try:
        start(fn, prefix=True, timeout=2, grace=0.1)
    except xmp.ReplicaTimeout as error:
        os.write(2, str(error).encode())
"""
)


def test_unread_output_is_named_as_the_cause(tmp_path: Path) -> None:
    """All replicas have ended; the supervisor has what they wrote, and no process reads it."""
    (tmp_path / "unread.py").write_text(UNREAD)
    command = [sys.executable, str(tmp_path / "unread.py"), "forkserver"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stderr is not None
        try:
            said = process.stderr.read()
        finally:
            process.kill()
    assert "timeout=2: all replicas have ended" in said, said
    assert "nothing reads the launcher's standard output or error" in said
