"""Play rounds on two hosts of ssh: what is said, what is left, and the next launch."""

from __future__ import annotations

import contextlib
import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ray_kinds
from ray_kinds import ALL, LOST, PROCESS, RUNNING, SILENCE, RayKind, RayRound
from ray_rounds import RayOutcome, Round

from tests.support.ssh_hosts import SshHosts, hosts_on_network
from tests.support.waiting import until

__all__ = ["KINDS", "SshRound", "SshRounds", "draw", "rounds_on_ssh"]

_GONE = 5.0
"""Seconds after the end of a driver in which its hosts have ended what they had for it."""
_NOT_HERE = ("actor-killed", "raylet-killed", "cut")
KINDS = (
    *(kind for kind in ray_kinds.KINDS if kind.name not in _NOT_HERE),
    *(
        RayKind(f"{name}-killed", ALL, PROCESS, victim="host", ends=LOST)
        for name in ("xmp-host", "xmp-link", "ssh", "sshd")
    ),
    RayKind("xmp-host-stopped", RUNNING, SILENCE, victim="host", ends=LOST, seldom=True),
    RayKind("cut", RUNNING, SILENCE, victim="host", ends=LOST, seldom=True),
)


class SshRound(RayRound):
    """One fault at one moment."""

    @property
    def fault(self) -> RayKind:
        return next(kind for kind in KINDS if kind.name == self.kind)


def draw(seed: int, number: int) -> SshRound:
    """The round of this number, the same whenever it is drawn."""
    lap, place = divmod(number, len(KINDS))
    kinds = list(KINDS)
    random.Random(f"ssh {seed} {lap}").shuffle(kinds)
    kind, chance = kinds[place], random.Random(f"ssh {seed} {number}")
    moment, host = chance.choice(kind.moments), chance.randrange(2)
    if kind.name == "cut":
        host = 1  # the driver is on the other
    kept = chance.random() < 0.5
    return SshRound(
        seed, number, kind.name, moment, (0.6 if kept else 4) * chance.random(), 0, host,
        chance.randrange(4), chance.randrange(30),
        chance.choice(("forkserver", "forkserver", "spawn")), chance.choice((0.5, 1.0, 2.0)),
        chance.choice((None, "gloo")), kept or moment == "rest",
    )  # fmt: skip


class _Round(Round):
    cluster: SshHosts

    def _victim(self) -> int:
        name = self.round.kind.rpartition("-")[0]
        if name == "sshd":
            host = self.round.host
            return until(lambda: self.cluster.sessions(host), 30, lambda: f"{self.cluster}")[0]
        if name in ("ssh", "xmp-link"):
            return self.cluster.link(self.round.host, name)
        if name == "xmp-host":
            return self.cluster.find(self.round.host, name)
        return super()._victim()

    def _mend(self) -> None:
        self.cluster.whole()


class SshRounds:
    """Two hosts, on which one round follows the other."""

    def __init__(self, hosts: SshHosts) -> None:
        self._hosts = hosts

    def play(self, round: SshRound) -> RayOutcome:
        """Play a round; the hosts are whole before it."""
        self._hosts.whole()
        one = _Round(self._hosts, None, round)
        try:
            one.play()
        except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
            one.found.append(f"{type(error).__name__}: {str(error)[:1500]}")
        if one.found:
            one.found += one.seen()
        self._hosts.end_drivers()
        if left := self._hosts.left(_GONE):
            one.found.append(f"left: {left}")
        return RayOutcome(round, one.found, one.took, one.again)


@contextlib.contextmanager
def rounds_on_ssh(folder: Path | None = None) -> Iterator[SshRounds]:
    """Two hosts to play rounds on. Needs to be root."""
    with contextlib.ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xmp-ssh-")))
        yield SshRounds(stack.enter_context(hosts_on_network(place)))
