"""Tables of contents from ``navigation`` in conf.py: pages stay free of directives."""

from __future__ import annotations

from typing import Any

TREE = "\n\n```{{toctree}}\n:hidden:\n\n{entries}\n```\n"


def setup(app: Any) -> dict[str, bool]:
    app.add_config_value("navigation", [], "env")
    app.connect("source-read", add_tree)
    return {"parallel_read_safe": True}


def add_tree(app: Any, page: str, source: list[str]) -> None:
    """Append to a page the entries that are below it."""
    if page == "index":
        entries = [f"{title} </{name}>" for title, name, _ in app.config.navigation if title]
    else:
        lists = [below for _, name, below in app.config.navigation if name == page]
        entries = [each if "<" in each else f"/{each}" for below in lists for each in below]
    if entries:
        source[0] += TREE.format(entries="\n".join(entries))
