"""What replicas write: shown with their rank, or not shown, and kept in files."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.launching import BEGIN, failure, launch
from tests.support.stage import Script
from tests.support.terminal import on_a_terminal
from tests.support.waiting import until
from xmp._calls.options import output_of
from xmp._words.types import Output, ReplicaPlan

pytestmark = pytest.mark.failing

SPEAKS = (
    BEGIN
    + """
def fn(rank):
    print("from", rank)
    os.write(1, b"half")
    time.sleep(0.05)
    os.write(1, b" and half\\n")
    libc = ctypes.CDLL(None)
    libc.puts(b"from C")
    for n in range(100):
        print("line", n)
    print("error of", rank, file=sys.stderr)
    libc.printf(b"no end from C")

if __name__ == "__main__":
    # Pending in the launcher, whose own it is: at its end, or where it forks itself before that.
    ctypes.CDLL(None).printf(b"the launcher's\\n")
    start(fn, **json.loads(sys.argv[2]))
"""
)
LINES = ["half and half", "from C", *(f"line {n}" for n in range(100)), "no end from C"]
LAUNCHERS = "the launcher's"


def of_rank(text: str, rank: int) -> list[str]:
    own = f"[{rank}] "
    return [line[len(own) :] for line in text.splitlines() if line.startswith(own)]


@pytest.mark.each_method
def test_every_line_has_its_rank_and_keeps_its_order(method: str, script: Script) -> None:
    done = script(SPEAKS, method, '{"prefix": true}')
    assert done.code == 0, done
    assert len(done.out.splitlines()) == 2 * (len(LINES) + 1) + 1, done
    assert done.out.splitlines()[0 if method == "fork" else -1] == LAUNCHERS
    for rank in (0, 1):
        assert of_rank(done.out, rank) == [f"from {rank}", *LINES]
        assert of_rank(done.err, rank) == [f"error of {rank}"]


def writes(rank: int) -> None:
    os.write(1, b"out\n")
    os.write(2, b"err\n")


@pytest.mark.first_pass
def test_a_prefix_of_ones_own(capfd: pytest.CaptureFixture[str]) -> None:
    prefix = "<{rank:02d}|{local_rank}|{host}> "
    launch("forkserver", writes, prefix=prefix)
    host = os.uname().nodename
    assert sorted(capfd.readouterr().out.splitlines()) == [
        f"<00|0|{host}> out", f"<01|1|{host}> out"
    ]  # fmt: skip


SHOWN: list[tuple[Any, list[int]]] = [
    ("0", [0]),
    ("all", [0, 1, 2]),
    ([0, 2], [0, 2]),
    ("none", []),
    ("0,1-2", [0, 1, 2]),
    (1, [1]),
    (None, [0, 1, 2]),
]


@pytest.mark.first_pass
@pytest.mark.parametrize(("show", "ranks"), SHOWN)
def test_which_ranks_an_option_names(show: Any, ranks: list[int]) -> None:
    output = output_of(show=show) or Output()
    plans = [ReplicaPlan(rank, rank, 1) for rank in range(3)]
    assert [plan.rank for plan in plans if output.shows(plan)] == ranks


@pytest.mark.first_pass
@pytest.mark.parametrize(("show", "ranks"), [([0, 2], [0, 2]), ("none", [])])
def test_which_ranks_are_shown(
    show: Any, ranks: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    launch("forkserver", writes, nprocs=3, show=show, prefix=True)
    shown = capfd.readouterr()
    assert sorted(shown.out.splitlines()) == [f"[{rank}] out" for rank in ranks]
    errors = [line for line in shown.err.splitlines() if "the start took" not in line]
    assert sorted(errors) == [f"[{rank}] err" for rank in ranks]


def test_files_have_everything_also_of_ranks_that_are_not_shown(
    method: str, script: Script, tmp_path: Path
) -> None:
    logs = tmp_path / "deep" / "logs"
    done = script(SPEAKS, method, '{"show": "0", "log_dir": "deep/logs"}', cwd=tmp_path)
    replicas, launchers = "\n".join(["from 0", *LINES]), f"{LAUNCHERS}\n"
    assert done.out == (launchers + replicas if method == "fork" else replicas + launchers), done
    assert done.err == "error of 0\n"
    assert stat.S_IMODE(logs.stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in logs.iterdir()} == {
        f"rank{rank}.{name}.log": 0o600 for rank in (0, 1) for name in ("stdout", "stderr")
    }
    for rank in (0, 1):
        said = (logs / f"rank{rank}.stdout.log").read_text()
        assert said.splitlines() == [f"from {rank}", *LINES]
        assert (logs / f"rank{rank}.stderr.log").read_text() == f"error of {rank}\n"


def test_the_next_launch_empties_its_files(tmp_path: Path) -> None:
    for text in ("first", "second"):
        launch("forkserver", lambda rank, text: print(text), text, log_dir=tmp_path, show="none")
        assert (tmp_path / "rank1.stdout.log").read_text() == f"{text}\n"


@pytest.mark.first_pass
def test_a_restart_goes_on_in_the_files(tmp_path: Path) -> None:
    def fn(rank: int) -> None:
        print("attempt", xmp.restart_count())
        if xmp.restart_count() == 0:
            raise ValueError("again")

    launch("forkserver", fn, nprocs=1, log_dir=tmp_path, show="none", max_restarts=1)
    assert (tmp_path / "rank0.stdout.log").read_text() == "attempt 0\nattempt 1\n"


def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "rank0.stdout.log").symlink_to("precious")
    with pytest.raises(xmp.PlanError, match=r"rank0\.stdout\.log"):
        launch("forkserver", print, log_dir=tmp_path)
    assert (tmp_path / "precious").read_text() == "mine"


IN_ONE = (
    BEGIN
    + """
def fn(rank):
    for n in range(200):
        print("to", n, file=sys.stderr if n % 3 else sys.stdout)

if __name__ == "__main__":
    start(fn, prefix=True)
"""
)


def test_output_and_error_in_one_stream_keep_their_order(script: Script) -> None:
    done = script(IN_ONE, "forkserver", shell_before="exec 2>&1")
    for rank in (0, 1):
        assert of_rank(done.out, rank) == [f"to {n}" for n in range(200)]


def test_output_before_a_kill_is_kept(tmp_path: Path) -> None:
    def fn(rank: int) -> None:
        print("the last words", rank)
        os.write(2, b"no line")
        if rank:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            signal.pause()

    error = failure("forkserver", fn, log_dir=tmp_path, show="none", grace=0.1)
    assert (tmp_path / "rank1.stdout.log").read_text() == "the last words 1\n"
    assert (tmp_path / "rank1.stderr.log").read_text() == "no line"
    assert (error.failures[0].stdout, error.failures[0].stderr) == ("the last words 1", "no line")
    assert "standard output:\nthe last words 1" in str(error)


@pytest.mark.first_pass
def test_a_last_line_without_its_end_is_shown(script: Script) -> None:
    source = BEGIN + "def fn(rank):\n    os.write(1, b'no end')\n    os.kill(os.getpid(), 9)\n"
    source += "if __name__ == '__main__':\n    start(fn, prefix=True)\n"
    done = script(source, "forkserver")
    assert of_rank(done.out, 0) == ["no end"], done


@pytest.mark.first_pass
def test_without_any_of_these_standard_output_is_the_launchers(method: str) -> None:
    mine = os.fstat(1)
    for theirs in launch(method, lambda rank: os.fstat(1)):
        assert (theirs.st_dev, theirs.st_ino) == (mine.st_dev, mine.st_ino)


@pytest.mark.each_method
def test_what_the_program_has_written_comes_first_and_once(method: str, script: Script) -> None:
    source = BEGIN + (
        "def fn(rank):\n    print('replica')\n"
        "if __name__ == '__main__':\n    print('launcher')\n    start(fn, nprocs=2)\n"
    )
    done = script(source, method)
    assert done.out.splitlines() == ["launcher", "replica", "replica"], done


# --- terminals -----------------------------------------------------------------------------------

TERMINAL = (
    BEGIN
    + """
def fn(rank):
    assert sys.stdout.isatty() and sys.stderr.isatty()
    print("hello", os.get_terminal_size().columns, os.get_terminal_size(2).columns)

if __name__ == "__main__":
    start(fn, prefix=True, progress=False)  # however long it takes
"""
)


def shown(folder: Path, *arguments: str, **env: str) -> bytes:
    """What a terminal of 80 columns gets of the program."""
    options = {"TERM": "xterm", **env}
    with on_a_terminal(folder, *arguments, source=TERMINAL, columns=80, **options) as there:
        assert there.end() == 0, there.text()
    return there.raw


def test_on_a_terminal_ranks_are_coloured_and_columns_fewer(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = shown(tmp_path, method)
    assert sorted(text.splitlines()) == sorted(
        [b"\x1b[36m[0] \x1b[0mhello 76 76", b"\x1b[33m[1] \x1b[0mhello 76 76"]
    ), text


@pytest.mark.first_pass
@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_without_colours_where_they_are_not_wanted(env: dict[str, str], tmp_path: Path) -> None:
    text = shown(tmp_path, "forkserver", **env)
    assert sorted(text.splitlines()) == [b"[0] hello 76 76", b"[1] hello 76 76"], text


# --- replicas that are threads of one process ----------------------------------------------------


@pytest.mark.first_pass
def test_replicas_of_one_process_speak_together(tmp_path: Path) -> None:

    both = ReplicaPlan(2, 2, 1, thread_replicas=(ReplicaPlan(3, 3, 1),))
    output = Output(log_dir="/logs", prefix="[{rank}|{local_rank}] ", show=(3,))
    assert output.prefix_of(both, "host") == "[2,3|2,3] "
    assert output.log_file(both, "stdout") == "/logs/rank2-3.stdout.log"
    assert output.shows(both)
    assert not output.shows(ReplicaPlan(0, 0, 0, thread_replicas=(ReplicaPlan(1, 1, 0),)))


@pytest.mark.first_pass
def test_a_launch_without_a_waiting_thread(tmp_path: Path) -> None:
    options: dict[str, Any] = {"log_dir": tmp_path, "show": "none", "join": False}
    context = launch("forkserver", speaks_slowly, tmp_path, **options)
    log = tmp_path / "rank1.stdout.log"
    until(lambda: log.read_text() == "one\n")  # while it runs
    (tmp_path / "go").touch()
    until(lambda: log.read_text() == "one\ntwo\n")
    context.join()


def speaks_slowly(rank: int, folder: Path) -> None:
    print("one")
    until((folder / "go").exists)
    print("two")


@pytest.mark.first_pass
def test_one_replica_with_output_options_has_a_process(tmp_path: Path) -> None:
    options: list[dict[str, Any]] = [{"log_dir": tmp_path}, {"prefix": True}, {"show": "0"}]
    for option in options:
        got = xmp.spawn(lambda rank: os.getpid(), nprocs=1, runtime="cpu", **option)
        assert got[0] != os.getpid()
