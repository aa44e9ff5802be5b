"""What is to be launched, as the launcher's side sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from xmp._words.types import HostPlan, JobPlan, Observer, Settings

if TYPE_CHECKING:
    from typing_extensions import Self

    from xmp._processes.messages.catalog import Message
    from xmp._processes.messages.order import PackedCall

    from .events import EventStream

__all__ = ["Call", "HostLink", "Job", "Relay"]


class Relay(Protocol):
    """Takes what a launch reports to another process, which opens results and exceptions."""

    events: bool
    """Whether it wants every change of state."""
    phases: bool
    """Whether it wants to know what replicas do before the function."""

    def begins(self) -> None: ...

    def take(self, message: Message, descriptors: Sequence[int]) -> None: ...


class HostLink(Protocol):
    """The other hosts of the job, as the engine knows them. No method waits.

    ``xmp/_hosts/carrier`` has the one that connects hosts.
    """

    verdict: Any
    """How the launch has failed, on whichever host; None until then."""
    all_done: bool
    """Whether the replicas of all hosts have ended well."""

    lost: bool
    """Whether nothing more comes; there is a verdict then, or all are done."""
    preempted: bool
    """Whether a host is about to be taken away."""
    progress: bool
    """Whether replicas of a host have made progress since this was set back."""
    proposals: deque[tuple[int, int, bool]]
    """Rounds of the vote on ``preempted()`` (``ProposedStep``)."""

    @property
    def pid(self) -> int:
        """Of the process that connects this host with the others; 0 when it has ended."""

    def fileno(self) -> int: ...

    def replica_key(self) -> bytes:
        """Return the key of this attempt's replicas, one for all hosts; empty without a secret."""

    def take_in(self) -> None: ...

    def fail(self, failure: Any) -> None: ...

    def done(self) -> None: ...

    def advance(self) -> None: ...

    def preempt(self) -> None: ...

    def reached(self, number: int, step: int) -> None: ...

    def leave(self) -> None: ...


@dataclass(frozen=True)
class Call:
    """What the user wants to run, and how xmp treats the replicas; a plan says what they get."""

    fn: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    observer: Observer | None = None
    telling: EventStream | None = None
    """The event stream of all attempts; None where the user has not asked for events."""
    packed: PackedCall | None = None
    """The call as another process has packed it: ``fn`` only has its name then."""
    relay: Relay | None = None
    """The driver of a launch over hosts, in the agent of one of them."""

    def using(self, **settings: Any) -> Self:
        """Return the call with other values of some of its settings."""
        return replace(self, settings=replace(self.settings, **settings))

    @property
    def name(self) -> str:
        """What the function is called."""
        if self.settings.program:
            return "the script's packages"
        return str(getattr(self.fn, "__qualname__", type(self.fn).__qualname__))

    @property
    def progress(self) -> bool | None:
        """Whether the start is shown; None: on a terminal, if it takes long."""
        return False if self.observer is None else self.observer.progress

    @property
    def reports_phases(self) -> bool:
        """Whether all replicas report what they do before the function."""
        return self.telling is not None or bool(self.progress)


@dataclass(frozen=True, kw_only=True)
class Job(Call):
    """A call with what was planned for it: no devices, only replicas."""

    plan: JobPlan
    host: HostPlan
    """This host's part of the plan, with replicas that share a process as one."""
    called: int
    """When the user called: monotonic nanoseconds."""
    leases: Mapping[str, int]
    """The descriptors of listening ports, by name."""
    hosts: HostLink | None = None
    """The other hosts of the launch; None where there are none."""

    @classmethod
    def of(
        cls,
        call: Call,
        plan: JobPlan,
        called: int,
        leases: Mapping[str, int],
        hosts: HostLink | None = None,
    ) -> Job:
        """Return the job of this host, which is the first of the plan."""
        # Not before the template starts.
        from xmp._processes.messages.thread_replicas import by_process

        host = by_process(plan.hosts[0])
        return cls(**vars(call), plan=plan, host=host, called=called, leases=leases, hosts=hosts)

    @property
    def identity(self) -> tuple[str, str]:
        """To remember that a fork was not safe after it was loaded."""
        return str(getattr(self.fn, "__module__", "")), self.name
