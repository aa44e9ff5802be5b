"""Displays in the replicas of a notebook, shown in its cell.

IPython asks a shell how and where to show an object; a replica gets a shell that does only that,
when something is displayed for the first time. Progress bars of tqdm that would be widgets, which
need a kernel to talk to, become text.

The supervisor installs this before it loads the call, since names such as ``tqdm.notebook.tqdm``
are pickled by reference. Imported for notebooks only.
"""

from __future__ import annotations

import builtins
import sys
import traceback
from types import ModuleType
from typing import Any

from xmp._os.imports import on_import

__all__ = ["flush_figures", "install"]

_INLINE = "matplotlib_inline.backend_inline"
_shell: Any = None


def install() -> None:
    """Prepare IPython and tqdm, now or when they are imported."""
    # In a cell `display` is a builtin (IPython, core/interactiveshell.py, init_builtins).
    builtins.display = _display  # type: ignore[attr-defined]
    on_import("IPython.core.interactiveshell", _give_shell)
    on_import("tqdm.notebook", _use_text)  # tqdm.auto chooses text where there is no kernel


def flush_figures() -> None:
    """Display the figures that the function has drawn and not shown, as a cell does at its end."""
    inline, pyplot = sys.modules.get(_INLINE), sys.modules.get("matplotlib.pyplot")
    if inline is None or pyplot is None or "inline" not in pyplot.get_backend():
        return
    try:
        if pyplot.get_fignums():
            inline.show(close=True)
    except Exception:  # as in a cell: it does not change the outcome
        traceback.print_exc()


def _display(*objects: Any, **options: Any) -> Any:
    from IPython.display import display

    return display(*objects, **options)


def _give_shell(module: ModuleType) -> None:
    """Answer ``display``, which asks the class whether there is a shell, and for it."""
    shell: Any = module.InteractiveShell
    shell.initialized = classmethod(lambda cls: True)
    shell.instance = classmethod(lambda cls, *_, **__: _the_shell(cls))


def _the_shell(kind: Any) -> Any:
    global _shell
    if _shell is None:
        from .display import new_shell

        _shell = new_shell(kind)
        if _INLINE in sys.modules:  # as that module does itself when a kernel imports it
            sys.modules[_INLINE].configure_inline_support(_shell, f"module://{_INLINE}")
    return _shell


def _use_text(module: ModuleType) -> None:
    """Put tqdm's text bars under the names of those that are widgets."""
    from tqdm.std import tqdm, trange

    names = {"tqdm": tqdm, "tqdm_notebook": tqdm, "trange": trange, "tnrange": trange}
    vars(module).update(names)
