"""``- `xmp.name` `` in a page of docs/api becomes the signature and docstring of that name."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from typing import Any

from sphinx.pycode import ModuleAnalyzer

NAME = re.compile(r"^- `(xmp(?:\.\w+)*)\.(\w+)`$", re.MULTILINE)
DIRECTIVE = """```{{eval-rst}}
.. auto{kind}:: {module}.{name}
{options}
```
"""
MEMBERS = "   :members:\n   :exclude-members: as_text, __init__"


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", read_attributes)
    app.connect("source-read", expand)
    app.connect("autodoc-process-docstring", keep, priority=100)
    app.connect("autodoc-process-docstring", restore, priority=900)
    return {"parallel_read_safe": True}


def read_attributes(app: Any) -> None:
    """Let autodoc find the texts below attributes.

    It looks for them in the module that ``__module__`` names, which is "xmp" for all public names.
    """
    public = importlib.import_module("xmp")
    for name in public.__all__:
        getattr(public, name)  # imports its module
    shown = ModuleAnalyzer.for_module("xmp")
    shown.analyze()
    for name, module in [*sys.modules.items()]:
        if name.startswith("xmp._"):
            copy_attributes(ModuleAnalyzer.for_module(name), shown, vars(public), vars(module))


def copy_attributes(
    source: ModuleAnalyzer, shown: ModuleAnalyzer, public: dict[str, Any], names: dict[str, Any]
) -> None:
    source.analyze()
    ours = {name for name in public["__all__"] if names.get(name, source) is public[name]}
    for (owner, attribute), text in source.attr_docs.items():
        if owner in ours:
            shown.attr_docs[owner, attribute] = text
    for path, order in source.tagorder.items():
        if path.partition(".")[0] in ours:
            shown.tagorder[path] = order


# Napoleon takes what stands before a colon in the text of an attribute for its type.
ATTRIBUTES = ("attribute", "data", "property")
kept: dict[str, list[str]] = {}


def keep(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    if what in ATTRIBUTES:
        kept[name] = lines[:]


def restore(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    if what in ATTRIBUTES:
        lines[:] = kept.pop(name)


def expand(app: Any, page: str, source: list[str]) -> None:
    if page == "api" or page.startswith("api/"):
        source[0] = NAME.sub(directive, source[0])


def directive(match: re.Match[str]) -> str:
    """Return autodoc's directive for a name; one that does not exist ends the build."""
    module, name = match.groups()
    value = getattr(importlib.import_module(module), name)
    kind, options = "data", ""
    if inspect.isclass(value):
        is_error = issubclass(value, BaseException)
        kind = "exception" if is_error else "class"
        options = MEMBERS + ("\n   :show-inheritance:" if is_error else "")
    elif callable(value):
        kind = "function"
    return DIRECTIVE.format(kind=kind, module=module, name=name, options=options)
