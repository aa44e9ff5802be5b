"""The ``ray`` engine, as the driver uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xmp._engines import count_of
from xmp._engines.pool import Pool

from .cluster import refuse_without_ray

if TYPE_CHECKING:
    from xmp._processes import Call
    from xmp._types import JobPlan, Request

    from .group import RayGroup

__all__ = ["engine"]


class RayEngine:
    """Each host is a node of a Ray cluster."""

    name = "ray"

    def __init__(self) -> None:
        self._pool: Pool[RayGroup] = Pool()
        self._reach: Any = None
        """Which hosts of the cluster have not answered."""

    def checked(self, hosts: object) -> int:
        refuse_without_ray()
        return count_of(hosts)

    def group(self, hosts: int, request: Request, call: Call) -> RayGroup:
        from .group import RayGroup
        from .placement import wanted
        from .reach import Reach

        self._reach = reach = self._reach or Reach()

        limit = call.limits.start if call.limits is not None else None
        seconds = limit / 1e9 if limit else None
        need = wanted(hosts, request)
        return self._pool.taken(need, lambda: RayGroup(need, self._pool, seconds, reach))

    def refuse(self, plan: JobPlan) -> None:
        """The hosts can carry out whatever fits their facts."""

    def settled(self, request: Request, plan: JobPlan) -> Request:
        return request

    def shutdown(self) -> None:
        self._pool.close()


engine = RayEngine()
