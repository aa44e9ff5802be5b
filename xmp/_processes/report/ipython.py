"""How IPython shows the error of a launch: the user's frames, and in a notebook a table.

IPython calls an exception's ``_render_traceback_`` (IPython, core/interactiveshell.py,
showtraceback), which returns text: HTML has to be displayed beside it.
"""

from __future__ import annotations

import sys
import types
import weakref
from typing import Any

from xmp._errors import ReplicaError, XmpError
from xmp._processes.system.interpreter import package_folder

__all__ = ["render", "users_frames"]

_shown: weakref.WeakKeyDictionary[ReplicaError, int] = weakref.WeakKeyDictionary()
"""The number of the execution in which each error was shown."""


def render(error: XmpError) -> list[str]:
    """The lines of the traceback; of a ReplicaError, displays the table where there is a notebook.

    IPython shows the innermost frame of a traceback even where that is hidden.
    """
    shell: Any = sys.modules["IPython"].get_ipython()
    count = shell.execution_count
    notebook = getattr(shell, "kernel", None) is not None
    if notebook and isinstance(error, ReplicaError) and _shown.get(error) != count:
        _shown[error] = count  # ipykernel asks twice
        from IPython.display import display

        # Front ends without HTML show the text of the error anyway.
        display({"text/html": error._repr_html_(), "text/plain": ""}, raw=True)
    frames = users_frames(error.__traceback__)
    lines: list[str] = shell.InteractiveTB.structured_traceback(type(error), error, frames)
    return lines


def users_frames(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """The same traceback without xmp's frames below the user's call."""
    if traceback is None or traceback.tb_frame.f_code.co_filename.startswith(package_folder):
        return None
    inner = users_frames(traceback.tb_next)
    return types.TracebackType(inner, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)


# Set here: the exceptions' own module imports nothing, and so knows no notebooks.
XmpError._render_traceback_ = render
