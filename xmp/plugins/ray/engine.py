"""The ``ray`` engine, as the driver uses it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xmp._calls import host
from xmp._hosts.engines import COUNT
from xmp._hosts.engines.pool import Pool
from xmp._hosts.engines.waiting import limit_of
from xmp._os import signals

from .cluster import connect, hosts_of, refuse_without_ray
from .placement import Hosts, checked, wanted
from .session import connected_meanwhile
from .silent_hosts import SilentHosts

if TYPE_CHECKING:
    from xmp._processes import Call
    from xmp._words.types import JobPlan, Request

    from .group import RayGroup

__all__ = ["engine"]


class RayEngine:
    """Each host is a node of a Ray cluster."""

    name = "ray"
    options = ("runtime_env",)
    needs_hosts = True
    wants = COUNT

    def __init__(
        self,
        pool: Pool[RayGroup] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        silent_hosts: SilentHosts | None = None,
    ) -> None:
        self._pool: Pool[RayGroup] = Pool() if pool is None else pool
        self._runtime_env = runtime_env
        self._silent_hosts = silent_hosts or SilentHosts()

    def checked(self, hosts: object) -> Hosts:
        refuse_without_ray()
        return checked(hosts)

    def prepared(self, given: Mapping[str, Any]) -> RayEngine:
        from . import runtime_env as ours

        return RayEngine(self._pool, ours.checked(given["runtime_env"]), self._silent_hosts)

    def group(self, hosts: Hosts, request: Request, call: Call) -> RayGroup:
        from .group import RayGroup

        limit = limit_of(call.settings.limits, time.monotonic())
        cluster = hosts_of(connect())
        need = wanted(hosts, request, cluster)
        if self._runtime_env:
            from .runtime_env import stored

            need = replace(need, runtime_env=stored(self._runtime_env))

        def make() -> RayGroup:
            imports = host.expected_imports(request, call)
            return RayGroup(need, cluster, self._pool, limit, self._silent_hosts, imports)

        with connected_meanwhile(need.said):
            group = self._pool.taken(need.key, make)
            try:
                there = group.reserve(need, cluster)
            except BaseException:
                with signals.blocked():
                    group.close()
                raise
            if there:
                return group
            group.close()  # others have its hosts now
            return self._pool.taken(need.key, make)

    def settled(self, request: Request, plan: JobPlan) -> Request:
        return request

    def shutdown(self) -> None:
        self._pool.close()


engine = RayEngine()
