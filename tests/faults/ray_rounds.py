"""Play rounds on a Ray cluster of two hosts: what is said, what is left, and the next launch."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ray_judge import misses
from ray_kinds import RayRound
from ray_left import Left

from tests.support.driven_hosts import DrivenHosts, Driver
from tests.support.ray_hosts import RayCluster, cluster_on_network
from tests.support.stage import slowness
from tests.support.waiting import until

__all__ = ["RayOutcome", "Round", "Rounds", "rounds_on_ray", "times"]

_FUNCTIONS = {"any": "waits", "first": "waits", "allreduce": "sums", "end": "late", "rest": "sums"}
_PROCESSES = {"agent-killed": "xmp-agent", "supervisor-killed": "xmp-supervisor",
              "raylet-killed": "raylet"}  # fmt: skip
_SIGNALS = {"ctrl-c": signal.SIGINT, "sigterm": signal.SIGTERM, "driver-killed": signal.SIGKILL}


_INTERRUPTED = 130
_RETURN = 5.0
"""Seconds after the end of a driver in which Ray has back what it has lent."""
_AFTER_LOSS = 20.0
"""The same where Ray has lost a host: it may still count as lent what no group has any more."""
_MOST = 1500
"""Characters of a text in a failure."""


@dataclass(frozen=True)
class RayOutcome:
    """How a round went."""

    round: RayRound
    misses: list[str]
    took: float | None
    """Seconds from the fault to the driver's error, or until nothing was left of it."""
    again: float | None
    """Seconds of the next launch."""

    def __str__(self) -> str:
        verdict = "" if self.took is None else f" over after {self.took:.2f} s"
        again = "" if self.again is None else f", the next launch {self.again:.2f} s"
        place = f"{self.round.seed}/{self.round.number}"
        line = f"{'MISS' if self.misses else 'ok  '} {place:>9} {self.round}:{verdict}{again}"
        return "\n".join([line, *(f"     {miss}" for miss in self.misses)])


class Rounds:
    """One cluster, on which one round follows the other; what a round has broken is made new."""

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster, self._left = cluster, Left(cluster)
        self.close = self._left.close
        self._broken = False

    def play(self, round: RayRound) -> RayOutcome:
        """Play a round; the cluster is whole before it."""
        one = Round(self._cluster, self._left, round)
        try:
            if self._broken:
                self._cluster.stop(0)
            self._cluster.make_whole(0, 1)
            self._left.begins()
            self._broken = False
            one.play()
            self._cluster.end_drivers()
            loses = round.kind in ("cut", "raylet-killed")
            one.found += self._left.found(_AFTER_LOSS if loses else _RETURN)
        except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
            where = traceback.extract_tb(error.__traceback__)[1:]
            steps = ", ".join(f"{each.name} line {each.lineno}" for each in where)
            one.found.append(f"{steps}: {str(error)[:_MOST]}")
        if one.found:
            self._broken = True
            one.found += one.seen()
        self._cluster.end_drivers()
        return RayOutcome(round, one.found, one.took, one.again)


class Round:
    """One round, from its fault to the next launch."""

    def __init__(self, cluster: DrivenHosts, left: Left | None, round: RayRound) -> None:
        self.cluster, self.left, self.round = cluster, left, round
        self._drivers: list[Driver] = []
        self.found: list[str] = []
        self.took: float | None = None
        self.again: float | None = None

    def play(self) -> None:
        driver = self._driver()
        if self.round.kept:
            driver.launch("hostname", options=self._options())
            self._expect(driver.results(), ["h0", "h0", "h1", "h1"])
        fault = self._happens(driver)
        said = self._said(driver)
        if said:
            took = (said["at"] - fault) / 1e9
            self.took = took if self.round.fault.limit else None
            slow = slowness() if took > self.round.limit else 1.0
            self.found += misses(self.round, said, took, slow)
            self._host_is_empty(fault)
        self._mend()
        self._next(driver)

    def _driver(self) -> Driver:
        self._drivers.append(self.cluster.driver(self.round.driver))
        return self._drivers[-1]

    def seen(self) -> list[str]:
        """What is there now, for a failure."""
        texts = []
        for driver in self._drivers:
            text = (driver.folder / f"driver-{driver.number}").read_text()
            texts.append(f"driver {driver.number}: {text[-_MOST:]}")
        return [*(f"{host.name}: {host.pids()}" for host in self.cluster.hosts), *texts]

    def _expect(self, results: Any, wanted: list[Any]) -> None:
        if sorted(results) != wanted:
            self.found.append(f"{results} instead of {wanted}")

    def _options(self) -> dict[str, Any]:
        return {
            "grace": self.round.grace,
            "start_method": self.round.method,
            "start_timeout": 90,
        }

    # --- the fault ---------------------------------------------------------------------------

    def _happens(self, driver: Driver) -> int:
        """Have it happen at its moment; when that was, in monotonic nanoseconds."""
        round = self.round
        if round.moment == "rest":
            return self._attack(driver)
        own = bool(round.fault.words)
        waits_for_hand = round.moment in ("allreduce", "end") and round.kind != "none"
        options = {**self._options(), **({"backend": round.backend} if round.backend else {})}
        driver.launch(
            _FUNCTIONS[round.moment], how=round.kind if own else "", options=options,
            victim=round.victim if own or waits_for_hand else -1, step=round.step,
        )  # fmt: skip
        if round.kind == "none":
            return 0
        if round.moment == "any":
            driver.reached("begun")
            begun = int((driver.marks / "begun").read_text())
            until(lambda: time.monotonic_ns() > begun + round.after * 1e9, 10)
            return self._attack(driver)
        if own or waits_for_hand:
            driver.reached("fault")
        else:
            driver.in_function()
        return driver.fault() if own else self._attack(driver)

    def _attack(self, driver: Driver) -> int:
        """Do it, from outside; when."""
        round, cluster = self.round, self.cluster
        if round.kind == "cut":
            at = time.monotonic_ns()
            cluster.hosts[round.host].cut()
            return at
        if round.kind in _SIGNALS:
            pid, number = driver.pid, _SIGNALS[round.kind]
        else:
            pid = self._victim()
            number = signal.SIGSTOP if round.kind.endswith("-stopped") else signal.SIGKILL
        at = time.monotonic_ns()
        os.kill(pid, number)
        return at

    def _victim(self) -> int:
        """The process that is killed."""
        if self.round.kind == "actor-killed":
            assert isinstance(self.cluster, RayCluster)
            return self.cluster.actor(self.round.host)
        if self.round.kind == "supervisor-killed" and self.round.moment == "end":
            last = f"xmp-replica-{self.round.victim}"
            host = next(i for i in (0, 1) if last in self.cluster.hosts[i].pids().values())
            self.round = replace(self.round, host=host)
        return self.cluster.find(self.round.host, _PROCESSES[self.round.kind])

    # --- what is said ------------------------------------------------------------------------

    def _said(self, driver: Driver) -> dict[str, Any]:
        """What the driver says, or how it ended, and when; nothing between two launches."""
        if self.round.gone:
            code = driver.process.wait(60)
            until(lambda: not self.cluster.of_xmp(), 60, lambda: f"{self.cluster}")
            return {"code": code, "at": time.monotonic_ns()}
        return {} if self.round.moment == "rest" else driver.said()

    def _host_is_empty(self, fault: int) -> None:
        """The replicas of a host that is lost end there, too."""
        if self.round.fault.victim != "host":
            return
        host, limit = self.round.host, self.round.limit
        until(lambda: not self.cluster.replicas(host), 2 * limit, lambda: f"{self.cluster}")
        took = (time.monotonic_ns() - fault) / 1e9
        if took > limit and took > limit * slowness():
            self.found.append(f"replicas were on host {host} for {took:.2f} s")

    # --- afterwards --------------------------------------------------------------------------

    def _mend(self) -> None:
        """Put the cluster together again; what is on it now was there before the next launch."""
        assert isinstance(self.cluster, RayCluster)
        assert self.left is not None
        if self.round.kind == "cut":
            self.cluster.hosts[self.round.host].plug()
            self.cluster.stop(self.round.host)  # Ray takes a minute to see that it was away
        if self.round.kind in ("cut", "raylet-killed"):
            self.cluster.make_whole(0, 1)
            self.left.renewed(self.round.host)

    def _next(self, driver: Driver) -> None:
        """The next launch, of the same program where it still runs."""
        if self.round.kind == "ctrl-c" and (code := driver.process.wait(30)) != _INTERRUPTED:
            self.found.append(f"the driver ended with {code} after Ctrl-C")
        if self.round.ends_driver:
            driver = self._driver()
        begun = time.monotonic()
        driver.launch("hostname", options=self._options())
        self._expect(driver.results(), ["h0", "h0", "h1", "h1"])
        self.again = time.monotonic() - begun
        if code := driver.finish():
            self.found.append(f"the driver ended with {code}")


def times(outcomes: list[RayOutcome]) -> Iterator[str]:
    """A line for each kind of fault: how often it was drawn, and how long it took."""
    for kind in dict.fromkeys(each.round.fault for each in outcomes):
        those = [each for each in outcomes if each.round.kind == kind.name]
        right = sum(not each.misses for each in those)
        took = sorted(each.took for each in those if each.took is not None)
        text = f"{took[0]:.2f} to {took[-1]:.2f} s" if took else "-"
        limit = f"{kind.limit:g} s{' + grace' * kind.has_grace}" if kind.limit else "-"
        if those:
            yield f"{kind.name:<18} {right} of {len(those)} right, {text} (limit {limit})"


@contextlib.contextmanager
def rounds_on_ray(folder: Path | None = None) -> Iterator[Rounds]:
    """A cluster to play rounds on. Needs to be root."""
    with contextlib.ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xmp-ray-")))
        cluster = stack.enter_context(cluster_on_network(place))
        rounds = Rounds(cluster)
        stack.callback(rounds.close)
        yield rounds
