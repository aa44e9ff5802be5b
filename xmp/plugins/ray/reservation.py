"""A launch's hosts, reserved in the cluster: a placement group, of which Ray gives all or none.

A TPU slice of several hosts takes two: one for the slice, then one for its hosts.

Between two launches of a program its agents stay, and the reservation only for a second: tasks of
the same program would wait for the processors for ever. GPUs are the exception: Ray gives an actor
some of them for as long as it lives.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xmp._hosts.engines.waiting import Later, Limit
from xmp._os import log, signals
from xmp._processes.launcher.launch_registry import reap_finished
from xmp._words.errors import PlanError, StartError

from . import shortage, slices
from .answers import Connected
from .cluster import ClusterHost, hosts_of
from .placement import Nodes, Wanted, has
from .shortage import may_grow

__all__ = ["Reservation"]

_NODE = "ray.io/node-id"
_PAUSE = 0.01
_KEPT = 1.0
"""Seconds for which a program that launches again at once keeps its hosts reserved: to take them
once more costs up to 1 s, as Ray looks again at growing intervals (Ray 2.60)."""
_AGAIN = 1.5
"""Seconds for hosts that were free a moment ago."""
_CHECK = 2.0
"""Seconds between two looks at the cluster: whether any host can come, which a new cluster does not
say at once, and whether others use the hosts."""


class Reservation:
    """Hosts of the cluster, from the request to ``remove``."""

    def __init__(
        self,
        ray: Any,
        need: Wanted,
        cluster: Sequence[ClusterHost],
        limit: Limit,
        avoided: Mapping[str, str],
    ) -> None:
        """Reserve the hosts. ``avoided``: the selector that leaves out those that do not answer."""
        self.need, self._avoided = need, avoided
        self.limit = limit
        self._ray, self._connected = ray, Connected()
        self._checked = 0.0
        """When it was last looked whether the cluster can have such hosts."""
        self._said = False
        self._groups: list[Any] = []
        self._given_back = Later(self._remove_all, _KEPT)
        self._held: dict[str, dict[str, float]] = {}
        """What is reserved, by the ids of the hosts."""
        self._where: list[str] = []
        """The ids of the hosts, once they are there, in the order of the bundles."""
        self.names: list[str] = []
        """What they are called, also after they have gone."""
        try:
            self._make(cluster)
        except BaseException:
            with signals.blocked():
                self.remove()
            raise

    @property
    def parts(self) -> list[dict[str, float]]:
        """What each host is asked for."""
        return self.need.parts

    def _make(self, cluster: Sequence[ClusterHost]) -> None:
        self._refuse_absent(cluster)
        if not shortage.can_ever(self.need, cluster):
            self._say(cluster)
        selectors: list[dict[str, str]] = [
            {**self._avoided, **dict(self.need.selector)} for _ in self.parts
        ]
        if isinstance(self.need.hosts, Nodes):
            selectors = [{_NODE: node} for node in self.need.hosts.ids]
        elif isinstance(self.need.hosts, slices.TpuSlice) and len(self.parts) > 1:
            name = self._slice(self.need.hosts, cluster)
            selectors = [
                {slices.NAME: name, slices.WORKER: str(index)} for index in range(len(self.parts))
            ]
        group = self._add(self.parts, selectors)
        self.wait(lambda: self._is_created(group))
        where = self._table(group)["bundles_to_node_id"]
        self._where = [where[index] for index in range(len(self.parts))]
        self.names = [str(host) for host in self.nodes()]
        self._held = self._asked()

    def _slice(self, wanted: slices.TpuSlice, cluster: Sequence[ClusterHost]) -> str:
        """Take a slice by its first worker, a free one if there is any now; return its name."""
        name = next(iter(slices.intact(wanted, cluster)), None)
        selector = {**self._avoided, slices.WORKER: "0", **dict(self.need.selector)}
        if name is not None:
            selector[slices.NAME] = name
        head = self._add([{wanted.head: 1.0}], [selector])
        self.wait(lambda: self._is_created(head))
        node = self._table(head)["bundles_to_node_id"][0]
        found = {host.node_id: host for host in hosts_of(self._ray)}
        if node not in found:
            raise StartError(
                f"{self.need.said}: the first host of the slice has gone "
                "before the others were taken. Launch again, or with max_restarts=1",
                code="XMP-H07",
            )
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

    def renewed(self, avoided: Mapping[str, str]) -> Reservation:
        """Return another one, after ``remove``, with the time that is left of this one."""
        cluster = hosts_of(self._ray)
        return Reservation(self._ray, self.need, cluster, self.limit, avoided)

    # --- where the actors go -------------------------------------------------------------------

    def options(self, index: int) -> dict[str, Any]:
        """Say where the actor of a host goes, and what it takes of the reservation."""
        from ray.util import scheduling_strategies as strategies

        part = self.parts[index]
        if not self.need.has_masks:
            there = strategies.NodeAffinitySchedulingStrategy(self._where[index], soft=False)
            return {"scheduling_strategy": there, "num_cpus": 0}
        return {
            "scheduling_strategy": strategies.PlacementGroupSchedulingStrategy(
                self._groups[-1], index
            ),
            "num_cpus": part.get("CPU", 0),
            "num_gpus": part.get("GPU", 0),
            "resources": {n: part[n] for n in ("neuron_cores",) if n in part},
        }

    def nodes(self) -> list[ClusterHost]:
        """Return the hosts, in the order of the bundles."""
        found = {host.node_id: host for host in hosts_of(self._ray)}
        if not found.keys() >= {*self._where}:
            raise StartError(
                f"{self.need.said}: a host has gone while the launch began", code="XMP-H07"
            )
        return [found[node] for node in self._where]

    # --- waiting -------------------------------------------------------------------------------

    def wait(self, done: Callable[[], bool]) -> None:
        """Wait until then. Raise the error of the limit after the time for it."""
        while not self._done(done):
            self.look()
            time.sleep(_PAUSE)
            signals.deliver()

    def _done(self, done: Callable[[], bool]) -> bool:
        self._connected.check()  # most of Ray's functions connect again, to another cluster
        return done()

    def look(self) -> None:
        """Say once why it takes long; raise the error of the limit when it has taken too long."""
        now = time.monotonic()
        self._connected.check()
        reap_finished()  # jobs that have ended, and were not joined yet, give their hosts back
        if not self.limit.left:
            raise self.limit.error(self._failure(), "XMP-H07")
        if self._where:
            return
        if now - self._checked > _CHECK:
            cluster = hosts_of(self._ray)
            self._refuse_absent(cluster)
            if not self._said and not shortage.is_free(self.need, cluster):
                self._say(cluster)

    def _refuse_absent(self, cluster: Sequence[ClusterHost]) -> None:
        """Raise PlanError where no host has the accelerators, and nothing adds hosts."""
        self._checked = time.monotonic()
        name = shortage.absent(self.need, cluster)
        if name and (isinstance(self.need.hosts, Nodes) or not may_grow(self._ray)):
            raise PlanError(shortage.refusal(self.need, cluster, name), code="XMP-H07")

    def _say(self, cluster: Sequence[ClusterHost]) -> None:
        self._said = True
        log.warning(
            "%s: %s; xmp waits up to %s for hosts",
            self.need.said, shortage.missing(self.need, cluster), self.limit,
        )  # fmt: skip

    def _failure(self) -> str:
        if self._where:
            names = ", ".join(self.names)
            return (
                f"{self.need.said}: {names} did not answer within {self.limit}: "
                "Ray has not started a process there, or it hangs"
            )
        why = shortage.missing(self.need, hosts_of(self._ray))
        return (
            f"{self.need.said}: no hosts within {self.limit}: {why}. Give fewer hosts or replicas, "
            f"or a longer {self.limit.name}; `ray status` and `ray list placement-groups` show who "
            "holds what"
        )

    def _is_created(self, group: Any) -> bool:
        return bool(self._table(group).get("state") == "CREATED")

    def _table(self, group: Any) -> dict[Any, Any]:
        from ray.util.placement_group import placement_group_table

        found: dict[Any, Any] = placement_group_table(group)
        return found

    # --- the end -------------------------------------------------------------------------------

    def release(self) -> None:
        """Give back soon, as the launch is over, what its agents do not need to stay."""
        if not self.need.has_masks:
            self._given_back.start()

    def again(self, need: Wanted, cluster: Sequence[ClusterHost]) -> bool:
        """Reserve the same hosts for the next launch, which may ask for more or less of each.

        False where they do not have that, or others do. More is another placement group, less
        changes nothing yet: Ray takes up to 1 s to give out what has just been given back.
        """
        self._given_back.stop()
        self.need = need
        more = self._more()
        known = {host.node_id: host.resources for host in cluster}
        if not all(has(known.get(node, {}), part) for node, part in more.items()):
            return False
        if more:
            begun = time.monotonic()
            group = self._add([*more.values()], [{_NODE: node} for node in more])
            while not self._is_created(group):
                if time.monotonic() - begun > _AGAIN:
                    self.remove()
                    return False
                time.sleep(_PAUSE)
                signals.deliver()
            for node, part in more.items():
                held = self._held.setdefault(node, {})
                self._held[node] = {**held, **{n: a + held.get(n, 0) for n, a in part.items()}}
        return True

    def _more(self) -> dict[str, dict[str, float]]:
        """Return what is not reserved of what the launch asks for, by the ids of the hosts."""
        found = {}
        for node, part in self._asked().items():
            held = self._held.get(node, {})
            lacks = {n: amount - held.get(n, 0) for n, amount in part.items()}
            if any(amount > 0 for amount in lacks.values()):
                found[node] = {n: amount for n, amount in lacks.items() if amount > 0}
        return found

    def _asked(self) -> dict[str, dict[str, float]]:
        """Return what the launch asks for, by the ids of the hosts; a slice by its first one."""
        parts = self.parts
        if isinstance(self.need.hosts, slices.TpuSlice) and len(parts) > 1:
            parts[0][self.need.hosts.head] = 1.0
        return dict(zip(self._where, parts))

    def remove(self) -> None:
        """Give back what is reserved; Ray ends the actors there."""
        self._given_back.stop()
        self._remove_all()

    def _remove_all(self) -> None:
        from ray.util.placement_group import remove_placement_group

        groups, self._groups, self._held = self._groups, [], {}
        if not self._ray.is_initialized():  # Ray would connect again to remove them
            return
        for group in groups:
            with contextlib.suppress(Exception):  # nothing can be done where Ray has gone
                remove_placement_group(group)
