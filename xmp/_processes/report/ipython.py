"""How IPython shows the error of a launch: the user's frames, and in a notebook a table.

IPython asks an exception for ``_render_traceback_``; HTML can only be displayed beside that text.
"""

from __future__ import annotations

import os
import sys
import types
import weakref
from typing import Any

from xmp._errors import ReplicaError

__all__ = ["render", "users_frames"]

_shown: weakref.WeakKeyDictionary[ReplicaError, int] = weakref.WeakKeyDictionary()
"""In which execution each error was shown."""
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def render(error: ReplicaError) -> list[str]:
    """The lines of the traceback; displays the table where there is a notebook."""
    shell: Any = sys.modules["IPython"].get_ipython()
    count = shell.execution_count
    if getattr(shell, "kernel", None) is not None and _shown.get(error) != count:
        _shown[error] = count  # ipykernel asks twice
        from IPython.display import display

        # Front ends that know no HTML have the text of the error anyway.
        display({"text/html": error._repr_html_(), "text/plain": ""}, raw=True)
    frames = users_frames(error.__traceback__)
    lines: list[str] = shell.InteractiveTB.structured_traceback(type(error), error, frames)
    return lines


def users_frames(place: types.TracebackType | None) -> types.TracebackType | None:
    """The same traceback without the frames of ours that the user's call has led to."""
    if place is None or place.tb_frame.f_code.co_filename.startswith(_OURS):
        return None
    following = users_frames(place.tb_next)
    return types.TracebackType(following, place.tb_frame, place.tb_lasti, place.tb_lineno)


# Set here: an exception's class stands on a floor that knows nothing of notebooks.
ReplicaError._render_traceback_ = render
