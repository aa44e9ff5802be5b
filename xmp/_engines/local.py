"""The ``local`` engine: hosts that one machine plays, as 127.0.0.2, 127.0.0.3 and so on.

Linux answers at every address of 127.0.0.0/8 (RFC 1122, 3.2.1.3 (g)), so that each of these hosts
has ports of its own. They share cores and memory, and real devices would be used twice.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from xmp import _host, _proc
from xmp._errors import PlanError, StartError
from xmp._probe import capacity
from xmp._processes.launcher.server_process import search_path
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.connection import pair
from xmp._processes.system import interpreter, linux, processes, stdio
from xmp._runtimes._cores import threads_said
from xmp._types import JobPlan, Pairs, Request

from . import HostFound, count_of
from .clocks import HostClock
from .environment import for_agents
from .missing import Missing
from .pool import Pool, new_job

if TYPE_CHECKING:
    from xmp._processes import Call
    from xmp._processes.messages.hosts import StartHost
    from xmp._processes.terminal.notebook_output import CellOutput

__all__ = ["engine"]

MOST = 253
"""127.0.0.2 to 127.0.0.254."""
DEVICES = ("cpu", "fake")
_END_WAIT = 5.0
_THREADS = "OMP_NUM_THREADS"


class LocalEngine:
    """Each host is an agent process on this machine."""

    name = "local"

    def __init__(self) -> None:
        self._pool: Pool[LocalGroup] = Pool()

    def checked(self, hosts: object) -> int:
        count = count_of(hosts)
        if count > MOST:
            raise PlanError(
                f"hosts={count}: one machine can play {MOST} hosts at most (127.0.0.2 to "
                "127.0.0.254). Give fewer"
            )
        if sys.platform != "linux":
            raise PlanError(
                f'engine="local" needs Linux, where all of 127.0.0.0/8 is this machine; '
                f"{sys.platform} has 127.0.0.1 alone. Use xmp.spawn"
            )
        return count

    def with_runtime_env(self, runtime_env: object) -> LocalEngine:
        raise PlanError(
            'engine="local" with runtime_env=: Ray alone prepares hosts by it. Give engine="ray", '
            "or env= for variables of replicas"
        )

    def group(self, hosts: int, request: Request, call: Call) -> LocalGroup:
        why = capacity.too_many(hosts * (request.nprocs or 1))
        if why:
            raise PlanError(f"hosts={hosts}, nprocs={request.nprocs}: {why}")
        return self._pool.taken((hosts,), lambda: LocalGroup(hosts, self._pool))

    def shutdown(self) -> None:
        self._pool.close()

    def refuse(self, plan: JobPlan) -> None:
        for replica in plan.hosts[0].replicas:
            if replica.device.partition(":")[0] not in DEVICES:
                raise PlanError(
                    f'engine="local" with runtime={plan.runtime!r}: several hosts on one machine '
                    f'would use the same devices ({replica.device}). Give runtime="cpu", or set '
                    "JAX_PLATFORMS=cpu for JAX; for this host with its devices, use xmp.spawn"
                )

    def settled(self, request: Request, plan: JobPlan) -> Request:
        """With each host's share of this machine's cores, where the user has not said anything."""
        if request.threads is not None:
            return request
        said = [_says_threads(dict(entry)) for entry in request.env or ((),)]
        replicas = plan.hosts[0].replicas
        shares = [
            max(1, (each.threads or 1) // _hosts_of(request))
            for local, each in enumerate(replicas)
            if not said[local % len(said)]
        ]
        if all(said):
            return request
        if not any(said):
            return replace(request, threads=shares[0])
        pairs = zip(request.env or (), said)
        return replace(
            request, env=tuple(e if s else _with_threads(e, shares[0]) for e, s in pairs)
        )


def _says_threads(given: Mapping[str, str]) -> bool:
    """Whether ``env=`` or this program's environment says how many threads a replica has."""
    return threads_said(given.get(_THREADS, os.environ.get(_THREADS))) > 0


def _with_threads(entry: Pairs, threads: int) -> Pairs:
    return tuple(sorted({**dict(entry), _THREADS: str(threads)}.items()))


def _hosts_of(request: Request) -> int:
    return len(getattr(request.world, "addresses", ())) or 1


class LocalGroup:
    """So many hosts of this machine, and their agents once they are needed."""

    def __init__(self, count: int, pool: Pool[LocalGroup]) -> None:
        self._agents: list[LocalAgent] = []
        self._pool, self._env = pool, for_agents()
        self.environment = new_job()
        facts = replace(
            _host.host_facts(), env=self._env, env_at_start={}, initialised=(), loaded=()
        )
        addresses = [f"127.0.0.{2 + index}" for index in range(count)]
        self.hosts = [HostFound(address, address, facts) for address in addresses]

    @property
    def usable(self) -> bool:
        """Whether all agents wait for the next launch."""
        return all(agent.lives for agent in self._agents)

    def begin(self) -> None:
        """Another launch takes the group: this process may have other variables by now."""
        self._env = for_agents()
        facts = replace(self.hosts[0].facts, env=self._env)
        self.hosts = [host._replace(facts=facts) for host in self.hosts]

    def inherited(self) -> dict[str, str]:
        return self._env

    def search_path(self, index: int) -> list[str]:
        return search_path()

    def program_path(self, index: int) -> list[str]:
        return list(sys.path)

    def advice(self, missing: Missing) -> str:
        return ""

    def agents(self, cell: bytes) -> list[LocalAgent]:
        stdio.flush()  # what the program has written comes before what its replicas write
        try:
            for index in range(len(self._agents), len(self.hosts)):
                self._agents.append(LocalAgent(index, self.hosts[index].address, self._env))
        except OSError as error:
            index = len(self._agents)
            raise StartError(
                f"the agent of host {index} of {len(self.hosts)} did not start: {error}"
            ) from error
        for agent in self._agents:
            agent.cell = cell
        return self._agents

    def release(self, lost: bool) -> None:
        self._pool.give_back(self, not lost)

    def close(self) -> None:
        self._pool.forget(self)
        for agent in self._agents:
            agent.end()

    def drop(self) -> None:
        for agent in self._agents:
            agent.drop()


class LocalAgent:
    """An agent, this process's child, and one end of a pair of sockets that it has inherited."""

    def __init__(self, index: int, address: str, env: Mapping[str, str]) -> None:
        """Raises OSError if it cannot be started."""
        self.index, self.name, self.address = index, address, address
        self.clock = HostClock()
        self.cell = b""
        """In a notebook: the mark before each display in the standard output of a launch."""
        self._output: CellOutput | None = None
        self._runs = False
        """Whether it has been sent the order of a launch that is not over."""
        self._connection, theirs = pair()
        watched, self._lifeline = os.pipe()
        numbers = theirs.fileno(), watched
        command = interpreter.fresh_interpreter("xmp._engines.agent", "main", *numbers)
        try:
            self._process = subprocess.Popen(
                command, pass_fds=numbers, env=dict(env), start_new_session=True
            )
        except OSError:
            self._connection.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(watched)
        self.pid = self._process.pid

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def start(self, order: StartHost, image: Sequence[int]) -> None:
        self._runs, streams = True, self._streams()
        try:
            self._connection.send(order, [*image, *streams])
        finally:
            for descriptor in streams:
                os.close(descriptor)

    def _streams(self) -> list[int]:
        """This process's, which may be others than at the launch before."""
        streams = stdio.standard_streams()
        if self.cell:
            from xmp._processes.terminal.notebook_output import CellOutput

            self._output = CellOutput(self.cell)
            for number, end in enumerate(self._output.ends(), 1):
                os.close(streams[number])
                streams[number] = end
        return streams

    def fileno(self) -> int:
        return self._connection.fileno()

    def readable(self) -> bool:
        return linux.ready(self._connection.fileno(), select.POLLIN, 0)

    def send(self, message: Message) -> None:
        self._connection.send(message)

    def recv(self) -> tuple[Message, list[int]]:
        return self._connection.recv()

    def kill(self) -> None:
        found = _proc.alive(self.pid)
        if self._process.poll() is None and found is not None:
            self._process.kill()

    def is_stopped(self) -> bool:
        return processes.is_stopped(self.pid)

    def how_it_ended(self) -> str:
        code = self._ended()
        if code is None:
            return "has closed its connection"
        return (
            f"was killed by {processes.signal_name(-code)}"
            if code < 0
            else f"ended with exit code {code}"
        )

    def _ended(self) -> int | None:
        try:
            return self._process.wait(_END_WAIT)
        except subprocess.TimeoutExpired:
            return None

    def rest(self) -> None:
        self._runs = False
        if self._output is not None:
            self._output.finish()
            self._output = None

    def end(self) -> None:
        """End it: at once, if it runs a launch; what it has started ends by its lifelines."""
        self._connection.close()
        if self._runs or self._ended() is None:
            self.kill()
            self._process.wait()
        self._cut()
        self.rest()

    def _cut(self) -> None:
        """Close the lifeline, once: the kernel kills an agent that still runs, or is stopped."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def drop(self) -> None:
        self._connection.close()
        self._cut()
        self._process.returncode = 0  # the child of another process: this one must not wait


engine = LocalEngine()
