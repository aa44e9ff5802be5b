"""What a replica knows of its place in the launch: the value of ``xmp.replica()``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ReplicaInfo"]


@dataclass(frozen=True)
class ReplicaInfo:
    """One replica's place in the launch, as ``xmp.replica()`` returns it."""

    rank: int
    """Its global rank, 0 to ``world_size`` - 1."""
    local_rank: int
    """Its rank on its host, 0 to ``local_world_size`` - 1."""
    world_size: int
    """The replicas of all hosts together."""
    local_world_size: int
    """The replicas of its host."""
    host_index: int = 0
    """The index of its host, from 0."""
    runtime: str = ""
    """The name of the runtime ("cuda"); empty in a process that xmp did not start."""
    device: str = "cpu"
    """The planned device ("cuda:1", "tpu:0", "cpu")."""
    restart_count: int = 0
    """How often ``max_restarts`` has restarted the replicas."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """``ReplicaPlan.settings``."""
    descriptors: Mapping[str, int] = field(default_factory=dict)
    """The leased sockets that this replica inherited, by the name of their ``PortNeed``."""

    @property
    def device_type(self) -> str:
        """The kind of its planned device: "cuda" of "cuda:1", "tpu", "cpu"."""
        return self.device.partition(":")[0]

    @property
    def device_id(self) -> int:
        """The number of its planned device on its host: 1 of "cuda:1".

        0 where it has no device of its own: on the CPU, and for the one process of a whole host.
        """
        number = self.device.partition(":")[2]
        return int(number) if number.isdecimal() else 0

    @property
    def device_ordinal(self) -> int:
        """The runtime's own number of its device among those of all hosts.

        That is torch_xla's ``runtime.global_ordinal()`` (2.9), which need not be the rank, where
        torch_xla connects the replicas; the rank elsewhere.
        """
        return int(self.settings.get("ordinal", self.rank))

    @property
    def endpoint(self) -> str:
        """The "address:port" that the plan gives this replica; empty where it gives none.

        Only the replicas of some runtimes have ports of their own: those of paddle, and of TPU
        chips. Those of torch meet at one store, MASTER_ADDR and MASTER_PORT.
        """
        return self.endpoints[self.rank] if self.endpoints else ""

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The endpoints of all replicas in rank order; empty where the plan gives none."""
        known = self.settings.get("endpoints", "")
        return tuple(known.split(",")) if known else ()

    @property
    def sampler_kwargs(self) -> dict[str, int]:
        """For torch's sampler: ``DistributedSampler(data, **xmp.replica().sampler_kwargs)``."""
        return {"num_replicas": self.world_size, "rank": self.rank}
