"""The hosts of a launch in a Ray cluster: a placement group with an actor and an agent on each."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Sequence
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
from .cluster import connect, hosts_of
from .host_clocks import measure
from .placement import Wanted, bundles
from .sent_files import SentFiles

__all__ = ["RayGroup"]

_START = 300.0
"""Seconds for all hosts, without ``start_timeout``: a cluster may add some."""
_PING = 5.0


class RayGroup:
    """So many hosts, from the first launch that needs them until another one needs others."""

    def __init__(self, need: Wanted, pool: Pool[RayGroup], seconds: float | None) -> None:
        self._pool, self._sent = pool, SentFiles()
        self.environment = new_job()
        self._ray = connect()
        self._ends = time.monotonic() + (seconds or _START)
        self._limit = seconds or _START
        self._group: Any = None
        self._actors: list[Any] = []
        self._agents: list[RayAgent] = []
        try:
            self._place(need)
            versions = self._answers([each.versions.remote() for each in self._actors])
            _refuse_versions(versions)
            self._start(versions)
        except BaseException:
            with _signals.blocked():
                self.close()
            raise

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
        self._group = placement_group(parts, strategy="STRICT_SPREAD")
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

    def _answers(self, asked: Sequence[Any]) -> list[Any]:
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
        try:
            return list(self._ray.get(list(asked)))
        except self._ray.exceptions.RayError as error:
            raise StartError(f"a host of the Ray cluster has failed: {error}") from None

    def _start(self, versions: Sequence[dict[str, Any]]) -> None:
        pids = self._answers([each.start.remote({}) for each in self._actors])
        self._paths = self._answers([each.path.remote() for each in self._actors])
        addresses = self._answers([each.address.remote() for each in self._actors])
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
        asked = [each.lives.remote() for each in self._actors]
        try:
            return all(self._ray.get(asked, timeout=_PING))
        except self._ray.exceptions.RayError:
            return False

    def begin(self) -> None:
        """The agents' own variables do not change."""

    def inherited(self) -> None:
        return None

    def search_path(self, index: int) -> list[str]:
        return list(self._paths[index])

    def agents(self) -> list[RayAgent]:
        stdio.flush()  # what the program has written comes before what its replicas write
        measure(self._agents)
        return self._agents

    def release(self, lost: bool) -> None:
        self._sent.clear()
        self._pool.give_back(self, not lost)

    def close(self) -> None:
        self._pool.forget(self)
        for agent in self._agents:
            agent.end()
        if not self._ray.is_initialized():
            return
        with contextlib.suppress(Exception):  # nothing can be done where Ray has gone
            asked = [each.end.remote() for each in self._actors]
            self._ray.wait(asked, num_returns=len(asked), timeout=_PING)
            for each in self._actors:
                self._ray.kill(each)
            if self._group is not None:
                from ray.util.placement_group import remove_placement_group

                remove_placement_group(self._group)

    def drop(self) -> None:
        for agent in self._agents:
            agent.drop()


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
