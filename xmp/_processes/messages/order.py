"""What the launcher orders from a supervisor, and how replicas failed: plain values, pickled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xmp._payload import Image
from xmp._payload.script import MainSource
from xmp._words.types import ForkRules, HostPlan, Settings

from .launcher_state import LauncherState

if TYPE_CHECKING:
    from .logging_setup import LoggingSetup

__all__ = ["HUNG_UP", "MALFORMED", "PHASES", "Failure", "LaunchOrder", "PackedCall"]

PHASES = ("starting", "importing", "joining", "running", "done", "failed")
"""What a replica goes through, in this order."""
HUNG_UP = 76
"""The exit code of a replica that finds its connection to the supervisor closed by its own code:
sysexits(3)'s EX_PROTOCOL."""
_TRACEBACK = "Traceback (most recent call last):"
MALFORMED = "malformed"
"""The kind of a failure: the replica has sent its supervisor what no replica of xmp sends."""


@dataclass(frozen=True)
class PackedCall:
    """A function with its arguments that one process has packed for launches of others."""

    name: str
    """The name of the function."""
    module: str
    image_data: bytes | None
    image_size: int
    """Of the memory file, if ``image_data`` is None."""
    touches_device: bool
    state: LauncherState
    """Of the process that has packed it."""
    main: MainSource | None
    logging: LoggingSetup | None
    """Where the launcher has no script that sets it up again."""
    image: int = -1
    """The descriptor of the memory file in the process that has this object."""
    cell: bytes = b""
    """In a notebook: the mark before each display in standard output (``cell_frames``)."""


@dataclass(frozen=True)
class LaunchOrder:
    """Everything a supervisor needs.

    The descriptors beside it: standard input, output and error, the call's image (if it
    ``has_file``), the launcher's resource tracker (if ``call.state.tracker``), the leases in the
    order of ``leases``, then those that belong to the call's objects.
    """

    host: HostPlan
    world_size: int
    runtime: str
    framework: str
    env_by_rank: tuple[str, ...]
    """The variables to which ``env=`` gives each replica a value of its own."""
    settings: Settings
    call: PackedCall
    rules: ForkRules
    method: str
    """"fork" the replicas after loading, or "exec" fresh interpreters that load for themselves;
    "inherit": fork them from a fork of the launcher (``start_method="fork"``)."""
    leases: tuple[str, ...]
    called: int
    """Monotonic nanoseconds of the user's call."""
    events: bool = False
    """Whether the supervisor reports every change of state (``events=``)."""
    phases: str = ""
    """Which replicas report what they do before the function: "all", "fresh" interpreters, none."""
    several_hosts: bool = False
    """Whether the launcher reports the first failure to other hosts."""
    for_driver: bool = False
    """True: a driver hears of all hosts, and says for all which ranks are waited for."""
    key: bytes = field(default=b"", repr=False)
    """What the replicas prove to each other that they belong to this attempt; empty: nothing."""

    @property
    def reports_phases(self) -> bool:
        """Whether its replicas report what they do before the function."""
        return self.phases == "all" or (self.phases == "fresh" and self.method == "exec")

    @property
    def first_phase(self) -> str:
        """What a new replica does, as far as it reports that."""
        return "joining" if self.framework and not self.reports_phases else "starting"

    @property
    def has_file(self) -> bool:
        """Whether the call lies in a memory file: a small one is part of the order."""
        return self.call.image_size > 0 and self.call.image_data is None

    def take_image(self, descriptors: list[int]) -> Image:
        """Return the call's image; its descriptor, if it has one, is the first of the list."""
        return Image(
            self.call.image_data, self.call.image_size, descriptors.pop(0) if self.has_file else -1
        )


@dataclass
class Failure:
    """How one replica failed, as far as it is known.

    ``label`` is "cause", "collateral", "stopped by xmp" or "unknown".
    """

    rank: int
    local_rank: int
    pid: int
    kind: str
    """"raised", "exit", "signal", "interrupted" or ``MALFORMED``."""
    label: str = "unknown"
    at: int = 0
    """Monotonic nanoseconds: when the replica raised, or when xmp noticed its end."""
    exit_code: int | None = None
    signal_name: str | None = None
    error_type: str = ""
    message: str = ""
    """The exception's, or "sys.exit(3)"."""
    traceback: str = ""
    pickled: bytes | None = field(default=None, repr=False)
    """The exception as an image, if it can be sent; the launcher makes ``exception`` of it."""
    unsent: str = ""
    """Why the exception could not be sent."""
    exception: BaseException | None = None
    stderr: str = ""
    stdout: str = ""
    """Its last lines, where xmp captures them; ``stderr`` has those of both in one stream."""
    stacks: str = ""
    """What faulthandler wrote of its threads (native crashes)."""
    device: str = ""
    why: str = ""
    """Why it was killed or ended, as far as that is known: "out of memory", "terminate() was
    called", or what was malformed."""
    entered: bool = True
    """Whether it had reached the function; of a thread replica that is not known."""
    hung_up: bool = False
    """Whether its own code has closed its connection to the supervisor."""
    recorded: tuple[str, str] = "", ""
    """The message and the traceback that torch's ``@record`` has written (``xmp run``)."""
    variables: str = ""
    """The local variables of the user's innermost frames, as JSON; ``error.locals`` has them."""
    final: bool = False
    """Whether a restart cannot help: its result cannot be sent."""

    @property
    def what(self) -> str:
        """What happened to it, in one line: "raised ValueError: no such label"."""
        if self.label == "stopped by xmp" and self.why and self.kind in ("signal", "exit"):
            how = self.signal_name or self.message or f"exit code {self.exit_code}"
            return f"was ended by xmp ({how}: {self.why})"
        if self.recorded_apart:
            return f"recorded {self.recorded_apart}, then {self._what}"
        return self._what

    @property
    def recorded_apart(self) -> str:
        """The first line of what was recorded, where the failure itself does not say it."""
        message = self.recorded[0].strip()
        own = f"{self.error_type}: {self.message}".strip()
        return "" if message == own else message.partition("\n")[0]

    @property
    def _said(self) -> str:
        """The first line of its message; with the last one, if that ends a traceback.

        So does the message of what a DataLoader's worker has raised (torch 2.13, _utils.py).
        """
        first, *others = self.message.strip().splitlines() or [""]
        if others and _TRACEBACK in self.message:
            return f"{first.removesuffix('.')}: {others[-1]}"
        return first

    @property
    def _what(self) -> str:
        if self.kind == "raised":
            said = self._said
            return f"raised {self.error_type}{': ' + said if said else ''}"
        if self.kind == "interrupted":
            return "was interrupted (KeyboardInterrupt)"
        if self.kind == MALFORMED:
            killed = " and was killed by xmp" if self.signal_name else ""
            return f"sent its supervisor a malformed message ({self.why}){killed}"
        why = f" ({self.why})" if self.why else ""
        if self.signal_name:
            return f"was killed by {self.signal_name}{why}"
        if self.hung_up:
            return f"closed its connection to xmp and ended with exit code {self.exit_code}"
        if self.message:
            return f"called {self.message}"
        return f"ended with exit code {self.exit_code}{why}"
