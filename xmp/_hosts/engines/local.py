"""The ``local`` engine: hosts that one machine plays, as 127.0.0.2, 127.0.0.3 and so on.

Linux answers at every address of 127.0.0.0/8 (RFC 1122, 3.2.1.3 (g)), so that each of these hosts
has ports of its own. They share cores and memory, and real devices would be used twice.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xmp._calls import host as _host
from xmp._os.probe import resources
from xmp._plan.runtimes._cores import threads_said
from xmp._processes.launcher.server_process import search_path
from xmp._processes.launcher.template_key import identity_key
from xmp._processes.messages.connection import Closed
from xmp._processes.messages.hosts import Prepare
from xmp._processes.system import interpreter, stdio
from xmp._words.errors import PlanError, StartError
from xmp._words.types import HostFacts, JobPlan, Pairs, Request

from . import COUNT, count_of
from .environment import for_agents
from .local_agent import LocalAgent
from .missing import Missing
from .ping import all_answer
from .pool import Pool, new_job
from .protocol import HostFound

if TYPE_CHECKING:
    from xmp._processes import Call

__all__ = ["engine"]

MOST = 253
"""127.0.0.2 to 127.0.0.254."""
DEVICES = ("cpu", "fake")
_THREADS = "OMP_NUM_THREADS"
_PATIENCE = 5.0
"""Seconds in which agents that wait answer."""


class LocalEngine:
    """Each host is an agent process on this machine."""

    name = "local"
    options = ()
    needs_hosts = True
    wants = COUNT

    def __init__(self) -> None:
        self._pool: Pool[LocalGroup] = Pool()

    def checked(self, hosts: object) -> int:
        count = count_of(hosts)
        if count > MOST:
            raise PlanError(
                f"hosts={count}: one machine can play {MOST} hosts at most (127.0.0.2 to "
                "127.0.0.254). Give fewer",
                code="XMP-H05",
            )
        if sys.platform != "linux":
            raise PlanError(
                f'engine="local" needs Linux, where all of 127.0.0.0/8 is this machine; '
                f"{sys.platform} has 127.0.0.1 alone. Use xmp.spawn",
                code="XMP-P04",
            )
        return count

    def prepared(self, given: Mapping[str, Any]) -> LocalEngine:
        return self

    def group(self, hosts: int, request: Request, call: Call) -> LocalGroup:
        why = resources.too_many(hosts * (request.nprocs or 1))
        if why:
            raise PlanError(f"hosts={hosts}, nprocs={request.nprocs}: {why}", code="XMP-P03")
        group = self._pool.taken((hosts,), lambda: LocalGroup(hosts, self._pool))
        group.imports = _host.expected_imports(request, call)
        return group

    def shutdown(self) -> None:
        self._pool.close()

    def settled(self, request: Request, plan: JobPlan) -> Request:
        """Give each host its share of this machine's cores, unless the user has said something."""
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
    """Return whether ``env=`` or this program's environment says how many threads a replica has."""
    return threads_said(given.get(_THREADS, os.environ.get(_THREADS))) > 0


def _with_threads(entry: Pairs, threads: int) -> Pairs:
    return tuple(sorted({**dict(entry), _THREADS: str(threads)}.items()))


def _hosts_of(request: Request) -> int:
    return len(getattr(request.world, "addresses", ())) or 1


class LocalGroup:
    """``count`` hosts that are all this machine, and their agents once they are needed."""

    def __init__(self, count: int, pool: Pool[LocalGroup]) -> None:
        self._agents: list[LocalAgent] = []
        self.imports: tuple[str, ...] | None = None
        """What templates of new agents can begin with."""
        self._pool, self._env, self._maker = pool, for_agents(), _maker()
        self.environment = new_job()
        facts = self._facts()
        addresses = [f"127.0.0.{2 + index}" for index in range(count)]
        self.hosts = [HostFound(address, address, facts) for address in addresses]

    def _facts(self) -> HostFacts:
        return replace(
            _host.host_facts(), env=self._env, env_at_start={}, initialised=(), loaded=()
        )

    @property
    def usable(self) -> bool:
        """Whether all agents wait for the next launch, which may change what a request can."""
        return self._maker == _maker() and all_answer(self._agents, _PATIENCE)

    def begin(self) -> None:
        """Another launch takes the group: this process may have other variables and cores."""
        self._env = for_agents()
        facts = self._facts()
        self.hosts = [host._replace(facts=facts) for host in self.hosts]

    def refuse(self, plan: JobPlan) -> None:
        for replica in plan.hosts[0].replicas:
            if replica.device.partition(":")[0] not in DEVICES:
                raise PlanError(
                    f'engine="local" with runtime={plan.runtime!r}: several hosts on one machine '
                    f'would use the same devices ({replica.device}). Give runtime="cpu", or set '
                    "JAX_PLATFORMS=cpu for JAX; for this host with its devices, use xmp.spawn",
                    code="XMP-P06",
                )

    def inherited(self) -> dict[str, str]:
        return self._env

    def search_path(self, index: int) -> list[str]:
        return search_path()

    def program_path(self, index: int) -> list[str]:
        return list(sys.path)

    def imports_script(self) -> bool:
        return True

    def files(self, index: int) -> None:
        return None

    def advice(self, missing: Missing, command: bool) -> str:
        return ""

    def agents(self) -> list[LocalAgent]:
        stdio.flush()  # what the program has written comes before what its replicas write
        try:
            for index in range(len(self._agents), len(self.hosts)):
                agent = LocalAgent(index, self.hosts[index].address, self._env)
                self._agents.append(agent)
                if self.imports is not None:
                    with contextlib.suppress(Closed):  # what is read next says why
                        agent.send(Prepare(self.imports))
        except OSError as error:
            index = len(self._agents)
            raise StartError(
                f"the agent of host {index} of {len(self.hosts)} did not start: {error}",
                code="XMP-S01",
            ) from error
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


def _maker() -> tuple[Any, ...]:
    """Return what agents take from this process when it starts them, and no order can change."""
    return (*identity_key(), interpreter.executable())


engine = LocalEngine()
