"""The line about a start that took long: its largest parts."""

from __future__ import annotations

from xmp._processes.messages.timeline import StartTimeline

__all__ = ["slow_start"]

_SLOW_SECONDS = 5.0


def slow_start(timeline: StartTimeline) -> str:
    """One line for a start that took longer than 5 s, else nothing."""
    total = timeline.last_entered()
    if total < _SLOW_SECONDS:
        return ""
    items = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in timeline.largest())
    return f"the start took {total:.1f} s: {items}"
