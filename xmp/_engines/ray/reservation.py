"""A launch's hosts, reserved in the cluster: a placement group, of which Ray gives all or none.

A TPU slice of several hosts takes two: one for the slice, then one for its hosts.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xmp import _log, _signals
from xmp._errors import StartError

from . import shortage, slices
from .cluster import ClusterHost, hosts_of
from .placement import Nodes, Wanted

__all__ = ["Reservation"]

_START = 300.0
"""Seconds for all hosts, without ``start_timeout``: a cluster may add some."""
_PAUSE = 0.02
_QUIET = 2.0
"""Seconds after which a person is told that hosts are in use by others."""


class Reservation:
    """Hosts of the cluster, from the request to ``remove``."""

    def __init__(
        self, ray: Any, need: Wanted, cluster: Sequence[ClusterHost], seconds: float | None,
        avoided: Mapping[str, str],
    ) -> None:  # fmt: skip
        """``avoided``: the selector that leaves out hosts which do not answer."""
        self.need, self.parts = need, need.parts
        self._avoided = avoided
        self.limit = seconds or _START
        self.ends = time.monotonic() + self.limit
        self._ray = ray
        self._begun = time.monotonic()
        self._said = False
        self._groups: list[Any] = []
        self._placed = False
        try:
            self._make(cluster)
        except BaseException:
            with _signals.blocked():
                self.remove()
            raise

    def _make(self, cluster: Sequence[ClusterHost]) -> None:
        if not shortage.can_ever(self.need, cluster):
            self._say(cluster)
        selectors: list[dict[str, str]] = [
            {**self._avoided, **dict(self.need.selector)} for _ in self.parts
        ]
        if isinstance(self.need.hosts, Nodes):
            selectors = [{"ray.io/node-id": node} for node in self.need.hosts.ids]
        elif isinstance(self.need.hosts, slices.TpuSlice) and len(self.parts) > 1:
            name = self._slice(self.need.hosts, cluster)
            selectors = [
                {slices.NAME: name, slices.WORKER: str(index)} for index in range(len(self.parts))
            ]
        self._add(self.parts, selectors)

    def _slice(self, wanted: slices.TpuSlice, cluster: Sequence[ClusterHost]) -> str:
        """Take a slice by its first worker; its name. A free one, if the cluster has any now."""
        name = next(iter(slices.intact(wanted, cluster)), None)
        selector = {**self._avoided, slices.WORKER: "0", **dict(self.need.selector)}
        if name is not None:
            selector[slices.NAME] = name
        head = self._add([{wanted.head: 1.0}], [selector])
        self.wait(lambda: self._is_created(head))
        node = self._table(head)["bundles_to_node_id"][0]
        found = {host.node_id: host for host in hosts_of(self._ray)}
        if node not in found:
            raise StartError(f"{self.need.said}: the first host of the slice has gone")
        return found[node].labels[slices.NAME]

    def _add(self, bundles: list[dict[str, float]], selectors: list[dict[str, str]]) -> Any:
        from ray.util.placement_group import placement_group

        # Ray refuses a name that another group has.
        token = secrets.token_hex(4)
        group = placement_group(
            bundles,
            strategy="STRICT_SPREAD",
            name=f"xmp launch {token} of process {os.getpid()} on {platform.node()}",
            bundle_label_selector=selectors if any(selectors) else None,
        )
        self._groups.append(group)
        return group

    def again(self, avoided: Mapping[str, str]) -> Reservation:
        """Another one, after ``remove``, with the time that is left of this one."""
        cluster = hosts_of(self._ray)
        made = Reservation(self._ray, self.need, cluster, max(0.1, self.left), avoided)
        made.limit = self.limit
        return made

    # --- where the actors go -------------------------------------------------------------------

    def strategy(self, index: int) -> Any:
        """Where the actor of a host goes."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self._groups[-1], index)

    def options(self, index: int) -> dict[str, Any]:
        """What the actor of a host takes of the reservation: what Ray has masks for."""
        part = self.parts[index]
        return {
            "scheduling_strategy": self.strategy(index),
            "num_cpus": part.get("CPU", 0),
            "num_gpus": part.get("GPU", 0),
            "resources": {n: part[n] for n in ("neuron_cores",) if n in part},
        }

    def nodes(self) -> list[ClusterHost]:
        """The hosts, once they are there, in the order of the bundles."""
        found = {host.node_id: host for host in hosts_of(self._ray)}
        where = self._table(self._groups[-1])["bundles_to_node_id"]
        return [found[where[index]] for index in range(len(self.parts))]

    # --- waiting -------------------------------------------------------------------------------

    @property
    def left(self) -> float:
        """Seconds, 0 or more."""
        return max(0.0, self.ends - time.monotonic())

    def wait(self, done: Callable[[], bool]) -> None:
        """Until then; raises StartError after the time for it."""
        while not done():
            self.look()
            time.sleep(_PAUSE)
            _signals.deliver()

    def look(self) -> None:
        """Say once why it takes long; raise StartError when it has taken too long."""
        now = time.monotonic()
        if now > self.ends:
            raise StartError(self._failure())
        if not self._said and now - self._begun > _QUIET and not self._is_placed():
            self._say(hosts_of(self._ray))

    def _say(self, cluster: Sequence[ClusterHost]) -> None:
        self._said = True
        _log.warning(
            "%s: %s; xmp waits up to %g s for hosts (start_timeout)",
            self.need.said, shortage.in_short(self.need, cluster), self.limit,
        )  # fmt: skip

    def _failure(self) -> str:
        if self._is_placed():
            names = ", ".join(str(host) for host in self.nodes())
            return (
                f"{self.need.said}: {names} did not answer within {self.limit:g} s "
                "(start_timeout): Ray has not started a process there, or it hangs"
            )
        cluster, own = hosts_of(self._ray), [group.id.hex() for group in self._groups]
        tables = {
            key: each
            for key, each in self._table().items()
            if each["state"] == "CREATED" and each["placement_group_id"] not in own
        }
        why = shortage.in_short(self.need, cluster)
        return (
            f"{self.need.said}: no hosts within {self.limit:g} s (start_timeout): {why}.\n"
            f"{shortage.explained(self.need, cluster, tables)}\n"
            "Give fewer hosts or replicas, or a longer start_timeout; `ray status` shows more"
        )

    def _is_placed(self) -> bool:
        done = self._placed or (bool(self._groups) and self._is_created(self._groups[-1]))
        heads = isinstance(self.need.hosts, slices.TpuSlice) and len(self.parts) > 1
        self._placed = done and len(self._groups) == 1 + heads
        return self._placed

    def _is_created(self, group: Any) -> bool:
        return bool(self._table(group).get("state") == "CREATED")

    def _table(self, group: Any = None) -> dict[Any, Any]:
        from ray.util.placement_group import placement_group_table

        found: dict[Any, Any] = placement_group_table(group)
        return found

    # --- the end -------------------------------------------------------------------------------

    def remove(self) -> None:
        """Give back what is reserved; Ray ends the actors there."""
        from ray.util.placement_group import remove_placement_group

        groups, self._groups = self._groups, []
        for group in groups:
            with contextlib.suppress(Exception):  # nothing can be done where Ray has gone
                remove_placement_group(group)
