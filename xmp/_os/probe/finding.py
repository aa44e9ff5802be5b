"""One finding of the doctor: how severe it is, what it is, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """One finding: a ``problem`` fails a launch, a ``warning`` may fail it, a ``note`` informs."""

    level: str
    text: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.level}: {self.text}" + (f" -> {self.advice}" if self.advice else "")
