"""The text of a failed launch: the cause with all that was found, then one line for the others."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence

from xmp._watch import is_victim

from .memory import Memory
from .order import Failure
from .stacks import crash, ranks
from .timeouts import DIVERGED
from .tracebacks import with_source

__all__ = ["text"]

_COLUMNS = 100
_CLASS = len("xmp.ReplicaRaised: ")  # stands before the first line
_HINTS = {17: "what legacy torch_xla gives a replica whose function raised"}
_LINES_AFTER_TRACEBACK = 10


def text(
    cause: Failure,
    others: Sequence[Failure],
    world_size: int,
    host: str,
    results: Iterable[int],
    memory: Memory,
) -> str:
    """What is said of a launch that failed like this."""
    where = ", ".join(filter(None, [cause.device, f"pid {cause.pid} on {host}"]))
    head = f"rank {cause.rank} of {world_size} ({where}) {cause.what}"
    parts = [_fitting(head, _COLUMNS - _CLASS)]
    # The next sentences are torch.multiprocessing's, word for word: programs search for them.
    if cause.kind == "raised":
        parts.append(f"-- Process {cause.local_rank} terminated with the following error:")
        parts[-1] += f"\n{with_source(cause.traceback.rstrip())}"
    else:
        parts += _how_it_died(cause)
    streams = {"standard error": cause.stderr, "standard output": cause.stdout}
    told = [_last_lines(name, text, cause.kind) for name, text in streams.items()]
    parts += filter(None, [memory.found(bool(cause.why)), *told])
    if results and is_victim(f"{cause.error_type}: {cause.message}"):
        # Whoever failed lost a peer, and no peer died: gloo fails at once where others would wait.
        parts.append(f"{ranks(results)} had finished: if that is the peer it missed, {DIVERGED}")
    listed = _lines([other for other in others if other.label != "stopped by xmp"], cause)
    if listed:
        parts.append("Also failed:\n" + "\n".join(listed))
    return "\n\n".join(parts)


def _how_it_died(failure: Failure) -> list[str]:
    if failure.signal_name:
        ending = f"signal {failure.signal_name}"
    else:
        ending = f"exit code {failure.exit_code}{_hint(failure.exit_code)}"
    parts = [f"process {failure.local_rank} terminated with {ending}"]
    if failure.traceback:
        parts.append(with_source(failure.traceback.rstrip()))
    if failure.signal_name not in (None, "SIGKILL", "SIGTERM", "SIGINT") and failure.stacks:
        parts.append(f"Its Python stacks:\n{crash(failure.stacks)}")
    return parts


def _hint(code: int | None) -> str:
    """Who gives this exit code, where that is known."""
    if code in _HINTS:
        return f" ({_HINTS[code]})"
    try:
        name = signal.Signals((code or 0) - 128).name
    except ValueError:
        return ""
    return f" (what a shell gives for a program that {name} has ended)"


def _last_lines(stream: str, text: str, kind: str) -> str:
    lines = text.splitlines()
    if kind == "raised":  # its own words say more
        lines = lines[-_LINES_AFTER_TRACEBACK:]
    return f"Its last lines on {stream}:\n" + "\n".join(lines) if lines else ""


def _lines(failures: Sequence[Failure], cause: Failure) -> list[str]:
    """One line for all that failed alike: seven victims say the same seven times."""
    alike: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        alike.setdefault((_shape(failure.what), failure.label), []).append(failure)
    return [_line(group, cause) for group in alike.values()]


def _shape(words: str) -> str:
    """Words without their numbers: ports and addresses differ between victims."""
    return re.sub(r"\d+", "#", words)


def _line(group: Sequence[Failure], cause: Failure) -> str:
    seconds = sorted((failure.at - cause.at) / 1e9 for failure in group)
    when = (
        f"{seconds[0]:+.3f} s" if len(group) == 1 else f"{seconds[0]:+.3f} … {seconds[-1]:+.3f} s"
    )
    label = "" if group[0].label == "unknown" else f", {group[0].label}"
    words = f"  {ranks(failure.rank for failure in group)} {group[0].what}"
    behind = f"  ({when}{label})"
    return _fitting(words, _COLUMNS - len(behind)) + behind


def _fitting(words: str, room: int) -> str:
    """On one line of a terminal; what does not fit is in the traceback or in ``failures``."""
    return words if len(words) <= room else f"{words[: room - 1]}…"
