"""What comes from the hosts of a Ray cluster: output, log files, events, stacks, failures.

``/proc/self/cwd`` is another folder for each process: the nodes were started in folders of their
own, so that a log folder below it is another one on each host, as it is on other machines.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.ray_cluster import RayCluster
from tests.support.stage import Outcome, Stage
from tests.support.waiting import until

pytestmark = pytest.mark.ray

NODE = os.uname().nodename
PREFIXES = [f"[{NODE}#{rank // 2}:{rank}] " for rank in range(4)]

BEGIN = """
    import hashlib, os, pathlib, signal, sys
    import xmp
    from in_script import never_returns, parent, say
    from waiting import until

    HERE = pathlib.Path(os.environ.get("FOLDER", "/"))
    LOGS = "/proc/self/cwd/logs"
    TWO = dict(hosts=2, engine="ray", nprocs=2, runtime="cpu", progress=False, grace=1)

    def error_of(fn, *args, **options):
        try:
            xmp.launch(fn, args, **{**TWO, **options})
        except xmp.XmpError as error:
            return f"{type(error).__name__}: {error}"
        return "no error"
"""


LIVE = (
    BEGIN
    + """
    def speaks(rank, folder):
        print("here is", rank, flush=True)
        until((folder / "go").exists, 60)
        os.write(1, b"par")
        xmp.barrier()
        os.write(1, b"tial\\n")
        os.write(2, b"error %d\\n" % rank)

    def waits_here(rank, folder):
        (folder / f"in-fn-{rank}").touch()
        until((folder / "on").exists, 60)

    if __name__ == "__main__":
        events = []
        xmp.launch(speaks, (HERE,), events=events.append, **TWO)
        say(events=[[event.name, event.rank] for event in events])
        xmp.launch(waits_here, (HERE,), **TWO)
        sys.stdout.flush()
        os.close(1)
        (HERE / "closed").write_text(str(list(xmp.launch(print, **TWO))))
    """
)


def test_live_lines_events_stacks_and_a_closed_stdout(stage: Stage, cluster: RayCluster) -> None:
    env = {**cluster.env, "FOLDER": str(stage.folder)}
    driver = stage.start(LIVE, env=env)
    out, err = (stage.folder / f"script1.py.{end}" for end in ("out", "err"))
    first = sorted(f"{prefix}here is {rank}" for rank, prefix in enumerate(PREFIXES))
    until(
        lambda: sorted(out.read_text().splitlines()) == first or driver.poll() is not None,
        60, lambda: out.read_text() + err.read_text(),
    )  # fmt: skip
    assert driver.poll() is None, err.read_text()
    (stage.folder / "go").touch()
    stage.in_function(driver, 4)
    os.kill(driver.pid, signal.SIGQUIT)
    until(lambda: "in waits_here" in err.read_text(), 20, err.read_text)
    alike = "nothing tells the ranks apart: all that run are at one place"
    assert f"where the living replicas are:\n{alike}\nranks 0-3:\n" in err.read_text()
    (stage.folder / "on").touch()
    done = stage.outcome(driver)
    assert done.code == 0, done.err
    assert (stage.folder / "closed").read_text() == "[None, None, None, None]"
    lines = [line for line in done.out.splitlines() if not line.startswith("@")]
    assert sorted(lines[4:]) == sorted(f"{prefix}partial" for prefix in PREFIXES)
    for rank, prefix in enumerate(PREFIXES):
        assert f"{prefix}error {rank}\n" in done.err
    names = [name for name, _ in done.said["events"]]
    assert (names[0], names[-1]) == ("planned", "finished")
    for name in ("joining", "running", "returned", "exited"):
        assert sorted(rank for each, rank in done.said["events"] if each == name) == [0, 1, 2, 3]


FLOOD = (
    BEGIN
    + """
    LINES = 100_000

    def floods(rank):
        line = b"%d " % rank + bytes(range(128, 228)) + b"\\n"
        for _ in range(100):
            os.write(1, line * (LINES // 100))

    if __name__ == "__main__":
        print(list(xmp.launch(floods, **{**TWO, "nprocs": int(sys.argv[1])})), file=sys.stderr)
    """
)


def test_20_mb_of_each_host_are_whole_and_unmixed(stage: Stage, cluster: RayCluster) -> None:
    path = stage.write(FLOOD)
    with open(stage.folder / "out", "wb") as out, open(stage.folder / "err", "wb") as err:
        driver = stage.start_command(
            sys.executable, str(path), "2", env=cluster.env, stdout=out, stderr=err
        )
        assert driver.wait(90) == 0, (stage.folder / "err").read_text()
    raw = bytes(range(128, 228))
    lines = (stage.folder / "out").read_bytes().split(b"\n")
    assert lines.pop() == b""
    found = {line: lines.count(line) for line in set(lines)}
    expected = [prefix.encode() + b"%d " % rank + raw for rank, prefix in enumerate(PREFIXES)]
    assert found == dict.fromkeys(expected, 100_000)


def test_nothing_reads_the_drivers_output(stage: Stage, cluster: RayCluster) -> None:
    reader, writer = os.pipe()
    with open(stage.folder / "err", "wb") as err:
        driver = stage.start_command(
            sys.executable, str(stage.write(FLOOD)), "1", env=cluster.env, stdout=writer, stderr=err
        )
        os.close(writer)
        assert os.read(reader, 1)  # replicas write
        os.close(reader)
        assert driver.wait(90) == 0, (stage.folder / "err").read_text()
    assert (stage.folder / "err").read_text().endswith("[None, None]\n")


FILES = (
    BEGIN
    + """
    def writes(rank, size):
        print("out of", rank)
        os.write(2, b"\\r\\xff\\0" + b"%d" % rank * (size if rank == 3 else 1))

    def fails(rank, at=3):
        print("seen by", rank, flush=True)
        xmp.barrier()
        if rank == at and not xmp.restart_count():
            os.write(2, b"the last words\\n")
            raise ValueError("no such label")
        return rank

    def kills(rank, what):
        print("before", rank, flush=True)
        xmp.barrier()
        if xmp.restart_count():
            return
        if rank == 3:
            agent = os.getpid()
            while open(f"/proc/{agent}/comm").read().strip() != "xmp-agent":
                agent = parent(agent)
            os.kill(agent if what == "agent" else parent(parent(agent)), signal.SIGKILL)
        never_returns()

    def found():
        texts = {}
        for path in pathlib.Path(LOGS).iterdir():
            data = path.read_bytes()
            path.unlink()
            texts[path.name] = [len(data), hashlib.sha256(data).hexdigest(), repr(data[:99])]
        return texts

    GATHER = dict(log_dir=LOGS, gather_logs=True, show="none")

    if __name__ == "__main__":
        say(stay=error_of(writes, 1, log_dir="/proc/self/cwd/stay", show="none"))
        say(fails_there=error_of(fails, log_dir=LOGS))
        say(blocked=error_of(writes, 1, log_dir="/proc/self/cwd/blocked"))
        xmp.launch(writes, (17_000_000,), **GATHER, **TWO)
        say(large=found())
        say(failed=error_of(fails, **GATHER), of_failed=found())
        say(again=list(xmp.launch(fails, max_restarts=1, **GATHER, **TWO)), of_again=found())
        say(here=os.path.exists("/proc/self/cwd/stay"))
        say(lost=error_of(kills, "agent", log_dir=LOGS))
        say(own=error_of(writes, 1, log_dir="/proc/logs", gather_logs=True))
        say(mended=error_of(kills, "agent", max_restarts=1, **GATHER), of_mended=found())
        say(gone=error_of(kills, "actor", **GATHER), of_gone=found())
    """
)


@pytest.fixture(scope="module")
def files(
    cluster: RayCluster, hosts: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Outcome:
    """What one driver has found."""
    (hosts[1] / "blocked").touch()
    stage = Stage(tmp_path_factory.mktemp("driver"))
    return stage.run(FILES, env=cluster.env, timeout=200)


def text_of(said: dict[str, Any], name: str) -> dict[str, str]:
    """The beginning of each file of standard output, by its name."""
    return {f: text for f, (_, _, text) in said[name].items() if f.endswith("stdout.log")}


def of_all(text: str) -> dict[str, str]:
    return {f"rank{r}.stdout.log": repr(text.format(r).encode()) for r in range(4)}


def test_log_files_stay_on_the_hosts(files: Outcome, hosts: list[Path]) -> None:
    assert files.said["stay"] == "no error"
    texts = [{p.name: p.read_bytes() for p in (host / "stay").iterdir()} for host in hosts]
    expected = {}
    for rank in range(4):
        expected[f"rank{rank}.stdout.log"] = b"out of %d\n" % rank
        expected[f"rank{rank}.stderr.log"] = b"\r\xff\0%d" % rank
    assert [len(each) for each in texts] == [4, 4]
    assert {**texts[0], **texts[1]} == expected
    assert not files.said["here"]


def test_an_error_says_on_which_host_the_files_are(files: Outcome) -> None:
    said = files.said["fails_there"]
    assert said.startswith("ReplicaRaised: rank 3 of 4")
    assert (
        f"Its log files are on host 1 ({NODE}): /proc/self/cwd/logs/rank3.stderr.log; "
        "gather_logs=True brings them"
    ) in said
    assert f"Its log files are on host 1 ({NODE}), in /proc/self/cwd/logs" in files.said["lost"]


def test_a_host_that_cannot_write_its_files(files: Outcome) -> None:
    said = files.said["blocked"]
    assert re.match(rf"PlanError: on host [01] \({NODE}\): log_dir='/proc/self/cwd/bl", said), said
    assert said.endswith("give a folder that can be written to [XMP-P14]")


def test_this_machine_cannot_write_them(files: Outcome) -> None:
    said = files.said["own"]
    assert said.startswith("PlanError: log_dir='/proc/logs': /proc/logs: "), said


def test_files_of_all_hosts_are_gathered(files: Outcome) -> None:
    large = files.said["large"]
    assert len(large) == 8
    for rank in range(4):
        data = b"\r\xff\0" + b"%d" % rank * (17_000_000 if rank == 3 else 1)
        size, digest, _ = large[f"rank{rank}.stderr.log"]
        assert (size, digest) == (len(data), hashlib.sha256(data).hexdigest())
    assert text_of(files.said, "large") == of_all("out of {}\n")


def test_after_a_failure_with_its_trace_and_last_output(files: Outcome) -> None:
    said = files.said["failed"]
    assert 'raise ValueError("no such label")' in said
    assert f"on {NODE}) raised ValueError: no such label" in said
    assert "Its log files" not in said
    assert text_of(files.said, "of_failed") == of_all("seen by {}\n")
    assert "the last words" in files.said["of_failed"]["rank3.stderr.log"][2]


def test_a_restart_appends(files: Outcome) -> None:
    assert files.said["again"] == [0, 1, 2, 3]
    assert text_of(files.said, "of_again") == of_all("seen by {0}\nseen by {0}\n")


def test_what_a_host_has_written_is_gathered_when_its_agent_was_killed(files: Outcome) -> None:
    assert "restart 1 of 1: host 1" in files.err
    assert files.said["mended"] == "no error"
    assert text_of(files.said, "of_mended") == of_all("before {0}\nbefore {0}\n")


def test_what_cannot_be_had_is_named(files: Outcome) -> None:
    assert files.said["gone"].startswith("HostLost: host 1 ")
    texts = text_of(files.said, "of_gone")
    assert {name for name, text in texts.items() if "before" in text} >= {
        "rank0.stdout.log",
        "rank1.stdout.log",
    }
    (line,) = [line for line in files.err.splitlines() if "not gathered" in line]
    assert line.startswith(
        f"xmp: host 1 ({NODE}): not gathered: rank2.stdout.log, rank2.stderr.log, "
        "rank3.stdout.log, rank3.stderr.log (cannot be reached: "
    ), line
