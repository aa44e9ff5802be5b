"""Numbers in the texts of variables, which any program may have written."""

from __future__ import annotations

__all__ = ["MOST", "is_number"]

MOST = 2**20
"""Of hosts, ranks, devices and threads: more are a mistake, and would be a list without end."""


def is_number(text: str) -> bool:
    """Whether ``int`` reads it as a whole number from 0 to ``MOST``.

    ``str.isdigit`` is true of "²", which ``int`` refuses.
    """
    short = len(text.lstrip("0")) <= len(str(MOST))
    return text.isascii() and text.isdigit() and short and int(text) <= MOST
