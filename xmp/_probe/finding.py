"""What the doctor says of one thing: how bad it is, what it is, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: ``problem`` fails a launch, ``warning`` may, ``note`` tells."""

    level: str
    text: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.level}: {self.text}" + (f" -> {self.advice}" if self.advice else "")
