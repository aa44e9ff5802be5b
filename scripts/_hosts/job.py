"""One simulated job: the real coordinator process, host 0's launcher, and simulated hosts."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from simulated import JOB, SECRET, card

from xmp._hosts.carrier.host_link import HostLink
from xmp._os.ports import BACKLOG
from xmp._words.host_words import HostMeeting

HERE = Path(__file__).parent
LIMIT = 30.0


class Job:
    """``measure`` goes through a launch and gives its figures: seconds, shares of a core, bytes."""

    def __init__(self, hosts: int) -> None:
        self.hosts = hosts
        with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener:
            meeting = HostMeeting(0, hosts, *listener.getsockname())
            self._link = HostLink(meeting, card(0, hosts), LIMIT, JOB, SECRET)
            self._link.start(listener.fileno())
        self._began = time.monotonic()
        middle = hosts if hosts <= 64 else (hosts + 1) // 2
        ranges = [(1, middle), (middle, hosts)]
        self._simulated = [self._start(meeting.port, *each) for each in ranges if each[0] < each[1]]

    def _start(self, port: int, first: int, last: int) -> subprocess.Popen[str]:
        command = [sys.executable, str(HERE / "simulated.py")]
        return subprocess.Popen(
            [*command, *map(str, (port, first, last, self.hosts))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self, seconds: float) -> dict[str, float]:
        """All figures; beats are measured for so many seconds."""
        self._link.come(0, print)
        found = {"roll call": self._heard()["at"] - self._began}
        found |= self._beats(seconds)
        found |= self._step("one failure", ["fail one", *["listen"] * (len(self._simulated) - 1)])
        found |= self._again(1)
        found |= self._step("all fail", ["fail all"] * len(self._simulated))
        found |= self._again(2)
        self._link.advance()
        found |= self._step("progress", ["progress"] * len(self._simulated))
        self._link.done()
        found |= self._step("done", ["done"] * len(self._simulated))
        found["memory"] = self._peak()
        return found

    def _beats(self, seconds: float) -> dict[str, float]:
        """Measure the processors' time that beats take, in both directions."""
        self._tell(["count"] * len(self._simulated))
        self._heard()
        ours, theirs = self._cpu(self._link.pid), sum(self._cpu(p.pid) for p in self._simulated)
        began = time.monotonic()
        time.sleep(seconds)  # what is measured is this long
        wall = time.monotonic() - began
        ours = self._cpu(self._link.pid) - ours
        theirs = sum(self._cpu(p.pid) for p in self._simulated) - theirs
        self._tell(["count"] * len(self._simulated))
        counted = self._heard()
        return {
            "beats": ours / wall, "simulated beats": theirs / wall,
            "beats sent": counted["sent"] / wall, "beats heard": counted["frames"] / wall,
        }  # fmt: skip

    def _step(self, name: str, words: list[str]) -> dict[str, float]:
        """Take a step of the launch. Return when the last host has heard, and the messages."""
        cpu, began = self._cpu(self._link.pid), time.monotonic()
        self._tell(words)
        heard = self._heard()
        cpu = self._cpu(self._link.pid) - cpu
        self._take_in()
        return {
            name: heard["at"] - began, f"{name}: coordinator": cpu,
            f"{name}: messages": heard["sent"] + heard["frames"],
        }  # fmt: skip

    def _again(self, attempt: int) -> dict[str, float]:
        """Begin the next attempt: all hosts come to the roll call on their connections."""
        began = time.monotonic()
        self._tell(["come"] * len(self._simulated))
        self._link.come(attempt, print)
        return {"next roll call": self._heard()["at"] - began}

    def _tell(self, words: list[str]) -> None:
        for process, word in zip(self._simulated, words):
            assert process.stdin is not None
            process.stdin.write(f"{word}\n")
            process.stdin.flush()

    def _heard(self) -> dict[str, float]:
        """Collect the answers of all simulated hosts: the last time, and sums of their counts."""
        answers = [json.loads(self._line(process)) for process in self._simulated]
        if not answers:
            raise ValueError("a job of one host has no coordinator: --hosts is at least 2")
        found = {name: float(sum(a[name] for a in answers)) for name in answers[0]}
        return {**found, "at": max(a["at"] for a in answers)}

    def _line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], LIMIT)[0]:
            raise TimeoutError(f"the simulated hosts have not answered within {LIMIT:g} s")
        if not (line := process.stdout.readline()):
            raise ChildProcessError("the process of the simulated hosts has ended")
        return line

    def _take_in(self) -> None:
        end = time.monotonic() + 10
        while not (self._link.verdict or self._link.all_done or self._link.progress):
            select.select([self._link], [], [], end - time.monotonic())
            self._link.take_in()

    def _cpu(self, pid: int) -> float:
        """Seconds of processor time (Linux, Documentation/scheduler/sched-stats.rst)."""
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9

    def _peak(self) -> float:
        status = Path(f"/proc/{self._link.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024.0

    def close(self) -> None:
        """End the simulated hosts and the coordinator."""
        for process in self._simulated:
            process.kill()
            process.communicate()
        self._link.end()


def measured(hosts: int, seconds: float) -> dict[str, float]:
    """Return the figures of one job."""
    with closing(Job(hosts)) as job:
        return job.measure(seconds)
