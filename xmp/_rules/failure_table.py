"""A failed launch as a table for notebooks: what happened to each rank. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

__all__ = ["Row", "rows", "table"]

Row = tuple[int, str, str, str]
"""Rank, label, what happened, and when."""
_HEAD = ("rank", "", "what", "when")


def rows(error: Any) -> list[Row]:
    """Return what happened to each rank that a ReplicaError knows of, sorted by rank."""
    return sorted(_rows(error))


def _rows(error: Any) -> Iterator[Row]:
    failed = {failure.rank for failure in error.failures}
    # The cause is the first failure; a launch that took too long has no cause.
    begin = error.failures[0].at if error.failures else 0
    for failure in error.failures:
        when = "" if failure.label == "cause" else f"{(failure.at - begin) / 1e9:+.3f} s"
        yield failure.rank, failure.label, failure.what, when
    for rank, value in error.results.items():
        if rank not in failed:
            what = "returned" if value is None else f"returned {type(value).__name__}"
            yield rank, "finished", what, ""


def table(error: Any) -> str:
    """Return the table as HTML, without styles; all text of the user is escaped."""
    title = html.escape(str(error).partition("\n")[0])
    head = "".join(f"<th>{name}</th>" for name in _HEAD)
    body = "".join(_line(row) for row in rows(error))
    return (
        f"<table><caption>{title}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _line(row: Row) -> str:
    tag = "th" if row[1] == "cause" else "td"
    return f"<tr>{''.join(f'<{tag}>{html.escape(str(cell))}</{tag}>' for cell in row)}</tr>"
