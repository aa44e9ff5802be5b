"""Rendering of a launch's error in IPython: the user's frames, and in a notebook a table.

IPython calls an exception's ``_render_traceback_`` (IPython, core/interactiveshell.py,
showtraceback), which returns text; HTML has to be displayed separately.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from xmp._os.excepthook import said_once, without_our_frames
from xmp._words.errors import ReplicaError, XmpError

__all__ = ["render", "rendered"]

_shown: weakref.WeakKeyDictionary[ReplicaError, int] = weakref.WeakKeyDictionary()
"""The execution count at which each error was shown."""


def render(error: BaseException) -> list[str]:
    """Return the lines of the traceback; in a notebook, also display the table of a ReplicaError.

    IPython shows the innermost frame of a traceback even if it is hidden. So the error's traceback
    is cut to the user's frames; %debug then begins in the innermost of them.
    """
    shell: Any = sys.modules["IPython"].get_ipython()
    count = shell.execution_count
    notebook = getattr(shell, "kernel", None) is not None
    if notebook and isinstance(error, ReplicaError) and _shown.get(error) != count:
        _shown[error] = count  # ipykernel asks twice
        from IPython.display import display

        # Front ends without HTML show the text of the error anyway.
        display({"text/html": error._repr_html_(), "text/plain": ""}, raw=True)
    error.__traceback__ = sys.last_traceback = without_our_frames(error.__traceback__)
    with said_once(error):
        lines: list[str] = shell.InteractiveTB.structured_traceback(
            type(error), error, error.__traceback__
        )
    if isinstance(error, ReplicaError) and error.locals:
        lines.append(f"The variables of rank {error.rank} there: sys.last_value.locals")
    return lines


def rendered(error: BaseException) -> None:
    """Have IPython show an exception that is not xmp's as it shows one of xmp's."""
    if not hasattr(type(error), "_render_traceback_"):
        # Without the __setattr__ of the user's class.
        object.__setattr__(error, "_render_traceback_", _render_last)


def _render_last() -> list[str]:
    """Render ``sys.last_value``, which IPython sets first; holding the error would be a cycle."""
    return render(sys.last_value)  # type: ignore[arg-type]


# Set here, since the exceptions' own module imports nothing, and so does not know notebooks.
XmpError._render_traceback_ = render
