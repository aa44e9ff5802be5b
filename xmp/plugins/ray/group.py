"""The hosts of a launch in a Ray cluster: a placement group with an actor and an agent on each."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xmp._hosts.engines.missing import Missing
from xmp._hosts.engines.ping import all_answer
from xmp._hosts.engines.pool import Pool, new_job
from xmp._hosts.engines.program_path import program_path
from xmp._hosts.engines.protocol import HostFound
from xmp._hosts.engines.remote_agent import RemoteFiles, measure_clocks
from xmp._hosts.engines.waiting import Later, Limit
from xmp._os import signals
from xmp._plan.clusters import is_each_host_itself
from xmp._processes.messages.connection import Closed
from xmp._processes.messages.hosts import Describe, Described, Prepare
from xmp._processes.system import stdio
from xmp._processes.terminal.console import in_notebook
from xmp._words.errors import PlanError, StartError

from . import actor
from .agent import RayAgent, ports_allowed
from .answers import all_came
from .cluster import ClusterHost, connect, connected_by_program, driver_host, hosts_of
from .host_faults import advice, failed_host, own_versions, refuse_versions
from .placement import Nodes, Wanted
from .reservation import Reservation
from .runtime_env import in_words
from .script_import import would_connect
from .session import end_before_ray, outlives_its_task, session
from .silent_hosts import SilentHosts
from .slices import TpuSlice, in_worker_order, names_of_workers, refuse_mixed, with_variables

if TYPE_CHECKING:
    from xmp._words.types import HostFacts, JobPlan

__all__ = ["RayGroup"]

_PING = 5.0
_IDLE = 600.0
"""Seconds between two launches for which a program keeps its part of the cluster, as it keeps
templates."""
_LOOK = 0.1
"""Seconds between two looks at signals and at the time, while hosts come."""


class RayGroup:
    """A set of hosts, kept until a launch needs different ones."""

    def __init__(
        self,
        need: Wanted,
        cluster: Sequence[ClusterHost],
        pool: Pool[RayGroup],
        limit: Limit,
        silent_hosts: SilentHosts,
        imports: tuple[str, ...] | None,
    ) -> None:
        """Reserve the hosts, and start their agents. Raise StartError, PlanError.

        ``imports``: what the hosts' templates can begin with, as ``host.expected_imports``.
        """
        self._pool, self._silent_hosts, self._imports = pool, silent_hosts, imports
        self.environment = new_job()
        self._ray = connect()
        self._session = session(self._ray)
        self._idle = Later(lambda: self._pool.expire(self), _IDLE)
        end_before_ray(pool.end)
        self._agents: list[RayAgent] = []
        self._entries = program_path()
        self._paths: list[list[str]] = []
        """``sys.path`` of replicas on each host, with these entries of the driver's."""
        self._silent_hosts.look(cluster)
        avoided = silent_hosts.selector()
        self._reservation = Reservation(self._ray, need, cluster, limit, avoided)
        pool.begins(need.key, self)
        try:
            found = self._placed(need)
            refuse_versions(found)
            self._meet(need, found)
        except BaseException:
            with signals.blocked():
                self.close()
            raise

    def _placed(self, need: Wanted) -> list[dict[str, Any]]:
        """Return what the actors of all hosts say, after so many placements as that takes.

        Their agents start meanwhile, and templates that import what the launch will need: torch
        takes longer than all the rest.
        """
        imports = [Prepare(self._imports)] if self._imports is not None else []
        first = *imports, Describe()
        while True:
            self._place(need)
            own, path = own_versions(), tuple(self._entries)
            asked = [each.actor.begin.remote(own, each.order(first), path) for each in self._agents]
            try:
                return self._answers(asked)
            except _OtherHostsError:
                self._unplace()
                self._reservation = self._reservation.renewed(self._silent_hosts.selector())

    def _look(self) -> None:
        """Look, while hosts are awaited, whether others are there by now."""
        if self._silent_hosts.silent and self._silent_hosts.look(hosts_of(self._ray)):
            raise _OtherHostsError

    def _place(self, need: Wanted) -> None:
        """Make one actor for each host; Ray starts them as soon as it has the hosts."""
        ray = self._ray
        ray.cloudpickle.register_pickle_by_value(actor)
        remote, home = ray.remote(actor.HostActor), driver_host(ray).address
        env = json.loads(need.runtime_env or "null")
        for index in range(len(self._reservation.parts)):
            agent = RayAgent(index, home, ports_allowed())
            self._agents.append(agent)
            options = {**self._reservation.options(index), "runtime_env": env}
            made = remote.options(**options, max_restarts=0, max_task_retries=0)
            agent.actor = made.remote()

    def _answers(self, asked: Sequence[Any]) -> list[Any]:
        """Return the answers of all actors. Raise StartError where a host does not come."""
        answers = [each.future() for each in asked]
        while not all_came(answers, _LOOK):
            signals.deliver()
            self._look()
            self._reservation.look()
        try:
            return list(self._ray.get(list(asked)))
        except self._ray.exceptions.RuntimeEnvSetupError as error:
            raise StartError(in_words(error), code="XMP-H07") from None
        except self._ray.exceptions.RayError:
            raise StartError(
                failed_host(self._ray, asked, self._reservation.names), code="XMP-H07"
            ) from None

    def _meet(self, need: Wanted, found: Sequence[dict[str, Any]]) -> None:
        """Reach the agents, which have started, and learn from them what the hosts are."""
        for agent, node, host in zip(self._agents, self._reservation.nodes(), found):
            agent.started(node.name, host)
        self._paths = [host["path"] for host in found]
        described = [self._description(agent) for agent in self._agents]
        for agent, each in zip(self._agents, described):
            agent.pid = each.pid
        self._order(need, [each.facts for each in described])

    def _order(self, need: Wanted, facts: list[HostFacts]) -> None:
        """Put the hosts in order, a slice's by their worker ids: Ray has an order of its own."""
        order, nodes, cluster = [*range(len(facts))], self._reservation.nodes(), hosts_of(self._ray)
        if any("TPU" in part for part in need.parts):
            refuse_mixed(nodes, cluster, need.said)
        if not isinstance(need.hosts, Nodes):
            order = in_worker_order(facts, need.said, must=isinstance(need.hosts, TpuSlice))
        names = names_of_workers(facts, nodes, cluster)
        self.environment.update(names)
        self._agents = [self._agents[i] for i in order]
        self._refuse_loopback(need)
        self._paths = [self._paths[i] for i in order]
        for index, agent in enumerate(self._agents):
            agent.index = index
        known = [with_variables(facts[i], names) for i in order]
        self.hosts = [HostFound(a.name, a.address, each) for a, each in zip(self._agents, known)]

    def _refuse_loopback(self, need: Wanted) -> None:
        """Raise PlanError where the others cannot reach a host at the address that Ray has."""
        for agent in self._agents if len(self._agents) > 1 else ():
            if is_each_host_itself(agent.address):
                raise PlanError(
                    f"{need.said}: Ray has {agent.name} at {agent.address}, where other hosts do "
                    "not find it. Start Ray on each node with an address that the others reach: "
                    "ray start --node-ip-address=ADDRESS",
                    code="XMP-H04",
                )

    def _description(self, agent: RayAgent) -> Described:
        """Return what a host is, as its agent says. Raise StartError."""
        try:
            return agent.answer(Described, self._reservation.limit.left)
        except TimeoutError as error:
            self._reservation.look()
            how = str(error)
        except Closed:
            how = agent.how_it_ended() if agent.is_reached else agent.unreached()
        raise StartError(f"the agent of {agent.name} did not start: {how}", code="XMP-H07")

    # --- as any group --------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        if session(self._ray) != self._session or not self._actors_live():
            return False
        return all_answer(self._agents, _PING)

    def _actors_live(self) -> bool:
        """Return whether all actors answer: what ends with a killed one does so a moment later."""
        answers = [agent.actor.lives.remote().future() for agent in self._agents]
        return all_came(answers, _PING) and not any(each.exception() for each in answers)

    def begin(self) -> None:
        """Stop the idle limit: another launch takes the group."""
        self._idle.stop()

    def refuse(self, plan: JobPlan) -> None:
        """Raise PlanError where a slice that the user has named runs what uses no chips."""
        need, device = self._reservation.need, plan.hosts[0].replicas[0].device
        if need.for_tpus and not device.startswith("tpu"):
            raise PlanError(
                f"{need.said}: {self.hosts[0].name} would run on {device} with runtime "
                f"{plan.runtime!r} ({plan.why}), and a slice is for its TPU chips. Install there "
                'what uses them (`pip install "jax[tpu]"` or "torch_xla[tpu]"), or give a number '
                'of hosts with runtime="cpu"',
                code="XMP-P06",
            )

    def inherited(self) -> None:
        return None

    def search_path(self, index: int) -> None:
        return None

    def program_path(self, index: int) -> list[str]:
        entries = program_path()
        if entries != self._entries:
            asked = [agent.actor.path.remote(tuple(entries)) for agent in self._agents]
            try:
                self._paths = self._ray.get(asked, timeout=_PING)
            except self._ray.exceptions.RayError:
                names = [agent.name for agent in self._agents]
                raise StartError(failed_host(self._ray, asked, names), code="XMP-H07") from None
            self._entries = entries
        return list(self._paths[index])

    def imports_script(self) -> bool:
        return not (connected_by_program() and would_connect())

    def files(self, index: int) -> RemoteFiles:
        return RemoteFiles(self._agents[index])

    def advice(self, missing: Missing, command: bool) -> str:
        return advice(missing, command)

    def agents(self) -> list[RayAgent]:
        stdio.flush()  # what the program has written comes before what its replicas write
        measure_clocks(self._agents)
        return self._agents

    def reserve(self, need: Wanted, cluster: Sequence[ClusterHost]) -> bool:
        """Take the hosts again, which others may have now; return whether that was possible."""
        return self._reservation.again(need, cluster)

    def release(self, lost: bool) -> None:
        self._reservation.release()
        if lost:
            self._silent_hosts.lost()
        elif not in_notebook():  # its user thinks between two cells
            self._idle.start()
        self._pool.give_back(self, not lost and not outlives_its_task(self._ray))

    def close(self) -> None:
        self._idle.stop()
        self._pool.forget(self)
        self._unplace()

    def _unplace(self) -> None:
        """End the actors, and with them the agents: no call of Ray here waits for a host."""
        agents, self._agents = self._agents, []
        for agent in agents:
            agent.hang_up()
        if session(self._ray) == self._session:
            with contextlib.suppress(Exception):  # nothing can be done where Ray has gone
                for actor_there in [agent.actor for agent in agents if agent.actor is not None]:
                    self._ray.kill(actor_there)
                self._reservation.remove()
        for agent in agents:
            agent.end()

    def drop(self) -> None:
        for agent in self._agents:
            agent.drop()


class _OtherHostsError(Exception):
    """The hosts must be reserved again: others can be reached by now."""
