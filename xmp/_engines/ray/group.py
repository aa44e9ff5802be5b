"""The hosts of a launch in a Ray cluster: a placement group with an actor and an agent on each."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

from xmp import _log, _signals
from xmp._engines import HostFound
from xmp._engines.pool import Pool, new_job
from xmp._errors import PlanError, StartError
from xmp._processes.messages.connection import Closed
from xmp._processes.messages.hosts import Describe, Described
from xmp._processes.system import stdio

from . import actor
from .agent import RayAgent
from .cluster import connect, driver_host, hosts_of
from .idle import IdleLimit
from .placement import Wanted, bundles
from .reach import Reach
from .sent_files import SentFiles
from .session import end_before_ray, ends_with_its_task, session

__all__ = ["RayGroup"]

_START = 300.0
"""Seconds for all hosts, without ``start_timeout``: a cluster may add some."""
_PING = 5.0
_IDLE = 600.0
"""Seconds between two launches for which a program keeps its part of the cluster, as it keeps
templates."""


class RayGroup:
    """So many hosts, from the first launch that needs them until another one needs others."""

    def __init__(
        self, need: Wanted, pool: Pool[RayGroup], seconds: float | None, reach: Reach
    ) -> None:
        self._pool, self._sent, self._reach = pool, SentFiles(), reach
        self.environment = new_job()
        self._ray = connect()
        self._session = session(self._ray)
        self._idle = IdleLimit(lambda: self._pool.expire(self), _IDLE)
        end_before_ray(pool.end)
        self._ends = time.monotonic() + (seconds or _START)
        self._limit = seconds or _START
        self._group: Any = None
        self._actors: list[Any] = []
        self._agents: list[RayAgent] = []
        try:
            versions = self._placed(need)
            _refuse_versions(versions)
            self._start(versions)
        except BaseException:
            with _signals.blocked():
                self.close()
            raise

    def _placed(self, need: Wanted) -> list[Any]:
        """What the actors of all hosts say, after so many placements as that takes."""
        self._reach.look(hosts_of(self._ray))
        while True:
            self._place(need)
            try:
                return self._answers([each.versions.remote() for each in self._actors], self._look)
            except _OtherHostsError:
                self._unplace()

    def _look(self) -> None:
        """While hosts are awaited: others may be there by now."""
        if self._reach.silent and self._reach.look(hosts_of(self._ray)):
            raise _OtherHostsError

    def _place(self, need: Wanted) -> None:
        ray = self._ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        ray.cloudpickle.register_pickle_by_value(actor)
        groups = {"send": 1, "hear": 1, "files": 2}
        remote = ray.remote(concurrency_groups=groups)(actor.HostActor)
        known = hosts_of(ray)
        self._say_few(need, known)
        parts = bundles(need, [host.resources for host in known])
        selectors = [self._reach.selector()] * len(parts) if self._reach.silent else None
        self._group = placement_group(
            parts, strategy="STRICT_SPREAD", bundle_label_selector=selectors
        )
        for index, part in enumerate(parts):
            where = PlacementGroupSchedulingStrategy(self._group, index)
            self._actors.append(
                remote.options(
                    scheduling_strategy=where, num_cpus=part.get("CPU", 0),
                    num_gpus=part.get("GPU", 0), max_restarts=0, max_task_retries=0,
                ).remote()
            )  # fmt: skip

    def _say_few(self, need: Wanted, known: Sequence[Any]) -> None:
        if len(known) < need.hosts:
            names = ", ".join(host.name for host in known)
            _log.warning(
                "hosts=%d: the Ray cluster has %d (%s); xmp waits up to %g s for more",
                need.hosts, len(known), names, self._limit,
            )  # fmt: skip

    def _answers(self, asked: Sequence[Any], look: Callable[[], None] = lambda: None) -> list[Any]:
        """The answers of all actors; StartError where a host does not come."""
        waiting = list(asked)
        while waiting:
            if time.monotonic() > self._ends:
                raise StartError(
                    f"{len(asked) - len(waiting)} of {len(asked)} hosts of the Ray cluster have "
                    f"come within {self._limit:g} s (start_timeout). See `ray status`"
                )
            _, waiting = self._ray.wait(waiting, num_returns=len(waiting), timeout=0.5)
            _signals.deliver()
            if waiting:
                look()
        try:
            return list(self._ray.get(list(asked)))
        except self._ray.exceptions.RayError as error:
            raise StartError(f"a host of the Ray cluster has failed: {error}") from None

    def _start(self, versions: Sequence[dict[str, Any]]) -> None:
        pids = self._answers([each.start.remote({}) for each in self._actors])
        self._paths = self._answers([each.path.remote() for each in self._actors])
        addresses = self._answers([each.address.remote() for each in self._actors])
        home = driver_host(self._ray)
        self._answers([each.watch.remote(home.address, home.port) for each in self._actors])
        for index, (each, found) in enumerate(zip(self._actors, versions)):
            agent = RayAgent(each, index, found["name"], addresses[index], pids[index])
            agent.use(self._sent)
            self._agents.append(agent)
        self.hosts = [HostFound(a.name, a.address, self._described(a).facts) for a in self._agents]

    def _described(self, agent: RayAgent) -> Described:
        agent.hear()
        try:
            agent.send(Describe())
            found: Described = agent.expect(Described, max(1.0, self._ends - time.monotonic()))
        except (Closed, TimeoutError) as error:
            raise StartError(
                f"the agent of {agent.name} did not start: {agent.how_it_ended()}"
            ) from error
        agent.rest()
        return found

    # --- as any group --------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        if session(self._ray) != self._session:
            return False
        asked = [each.lives.remote() for each in self._actors]
        try:
            return all(self._ray.get(asked, timeout=_PING))
        except self._ray.exceptions.RayError:
            return False

    def begin(self) -> None:
        """The agents' own variables do not change."""
        self._idle.stop()

    def inherited(self) -> None:
        return None

    def search_path(self, index: int) -> list[str]:
        return list(self._paths[index])

    def agents(self, cell: bytes) -> list[RayAgent]:
        stdio.flush()  # what the program has written comes before what its replicas write
        for agent in self._agents:
            agent.cell = cell
        return self._agents

    def release(self, lost: bool) -> None:
        self._sent.clear()
        if lost:
            self._reach.lost()
        else:
            self._idle.start()
        self._pool.give_back(self, not lost and not ends_with_its_task(self._ray))

    def close(self) -> None:
        self._idle.stop()
        self._pool.forget(self)
        for agent in self._agents:
            agent.end()
        if session(self._ray) == self._session:
            with contextlib.suppress(Exception):  # nothing can be done where Ray has gone
                self._unplace()

    def _unplace(self) -> None:
        """End the actors, and with them the agents: no call of Ray here waits for a host."""
        from ray.util.placement_group import remove_placement_group

        for each in self._actors:
            self._ray.kill(each)
        self._actors.clear()
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    def drop(self) -> None:
        for agent in self._agents:
            agent.drop()


class _OtherHostsError(Exception):
    """The placement group must be made again, for other hosts."""


def _refuse_versions(found: Sequence[dict[str, Any]]) -> None:
    """Raise PlanError where a host has no xmp, or another one than this process."""
    import xmp

    own = platform.python_version()
    for host in found:
        name, version = host["name"], host["xmp"]
        if host["python"].split(".")[:2] != own.split(".")[:2]:
            raise PlanError(f"host {name} has Python {host['python']}, and this process {own}")
        if version != xmp.__version__:
            has = f"has xmp {version}" if version else f"cannot import xmp ({host['error']})"
            raise PlanError(
                f"host {name} {has}, and this process has {xmp.__version__}. Run there: "
                f"{host['executable']} -m pip install xmp-spawn=={xmp.__version__}"
            )
