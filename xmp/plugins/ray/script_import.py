"""Whether a script, imported again on a host, would connect to Ray there.

Ray's own programs need no guard, as Ray sends what a script defines by value. So may xmp: an import
that calls ``ray.init`` would start a cluster of its own on each host, or run until it finds one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from xmp._payload.script import is_guard, line_outside_guard, main_source
from xmp._payload.top_imports import parsed

from .surroundings import is_rays

__all__ = ["would_connect"]


def would_connect() -> bool:
    """Return whether it would, as this program has called ``ray.init``, where it launches."""
    source = main_source()
    if source is None:
        return False
    # In a task or an actor __main__ is a script of Ray's (2.60, default_worker.py).
    if line_outside_guard(source.path) or is_rays(source.path):
        return True
    try:
        return any(_is_init(each) for each in _run_by_import(parsed(source.path).body))
    except (OSError, SyntaxError, ValueError):
        return False


def _run_by_import(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Yield what is in these statements, but for functions, classes, and what is guarded."""
    waiting: list[ast.AST] = [*body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and is_guard(node.test):
            waiting += node.orelse
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


def _is_init(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "ray.init"
