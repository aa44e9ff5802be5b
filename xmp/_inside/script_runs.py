"""Runs the script of ``xmp run`` in a replica, as a fresh interpreter would run it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import linecache
import os
import pkgutil
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from multiprocessing import process
from typing import Any, NoReturn

from xmp import _registry
from xmp._os import signals
from xmp._payload.script import is_kept

from . import begin_script, restart_count, world_size

__all__ = ["ScriptRun", "run_in_replica", "script_folder"]

_BEFORE = _registry.every("scripts")
"""Functions that prepare libraries for a script; loaded here, in the template."""
_MAIN = "__main__"
_AT_START = frozenset(
    {
        *("os", "codecs", "io", "abc", "site", "stat", "encodings", "genericpath", "posixpath"),
        *("zipimport", "_collections_abc", "_sitebuiltins"),
    }
)
"""Modules that an interpreter has imported before it searches the script's folder."""


@dataclass(frozen=True)
class ScriptRun:
    """The script or program that each replica runs."""

    kind: str
    """"path" of a script, "folder" (or zip file) with a ``__main__.py``, "module" (``-m``), or
    "program" (``--no-python``)."""
    target: str
    """The target as the user gave it: the script's ``sys.argv[0]``."""
    args: tuple[str, ...] = ()
    run_id: str = ""
    """``TORCHELASTIC_RUN_ID``, if the user has named one."""
    unique: str = ""
    """The value of that variable if not, where this host is the only one."""
    max_restarts: int = 0
    error_file: str = ""
    """``TORCHELASTIC_ERROR_FILE`` of the command, which a replica in its process shares."""
    started: float = 0.0
    """When the user called, in seconds since 1970."""
    source: bytes | None = None
    """The script's text, for hosts that may lack its file, or if it can be read only once."""
    origin: str = ""
    """The absolute path on the driver's host from which it was read."""
    folder: str = ""
    """The folder that is first in ``sys.path`` in that case."""


def run_in_replica(rank: int, run: ScriptRun) -> None:
    """Become the script, whose ``__main__`` stays to the end of this process.

    runpy would put the old ``__main__`` back when the script has run to its end, and exit handlers
    and threads of the script would find that module. Raises what the script raises.
    """
    begin_script()
    os.environ.update(_torchruns_variables(run, rank))
    if run.kind == "program":
        _execute([run.target, *run.args])
    folder = _first_in_path(run)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[:1] = [folder]
        _forget_shadowed(folder)
    sys.argv[:] = [run.target, *run.args]
    sys.orig_argv[:] = _command(run)
    if world_size() > 1:
        for ready in _BEFORE:
            ready(rank, run.started)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # torchrun runs scripts with `python -u`
    main = types.ModuleType(_MAIN)
    code = _CODE[run.kind](run, main)
    sys.modules[_MAIN] = main
    # It matters to scripts: some do their work in the main process alone.
    process.current_process().name = "MainProcess"
    process._parent_process = None  # type: ignore[attr-defined]
    exec(code, main.__dict__)


def _command(run: ScriptRun) -> list[str]:
    """Return the command of a fresh interpreter, by which some programs start themselves again."""
    module = ["-m"] if run.kind == "module" else []
    options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *options, *module, run.target, *run.args]


def _first_in_path(run: ScriptRun) -> str:
    if run.kind == "module":
        return os.getcwd()
    if run.kind == "folder":
        return run.target
    return script_folder(run.target) if _is_here(run) else run.folder


def _is_here(run: ScriptRun) -> bool:
    """Return whether this host has the script's file; otherwise it lies on the driver's host."""
    return run.source is None or is_kept(run.target)


def script_folder(path: str) -> str:
    """Return what a fresh interpreter puts first into ``sys.path`` for a script, links resolved."""
    return os.path.dirname(os.path.realpath(path))


def _torchruns_variables(run: ScriptRun, rank: int) -> dict[str, str]:
    """Return the variables that torchrun sets beside the ranks (torch 2.13, elastic/agent/server).

    No agent hosts a store here: with ``TORCHELASTIC_USE_AGENT_STORE=True`` torch would make every
    rank a client of the port that the script itself names, where nothing serves, and hang.
    """
    return {
        "TORCHELASTIC_RUN_ID": run.run_id or _run_id(run),
        "TORCHELASTIC_RESTART_COUNT": str(restart_count()),
        "TORCHELASTIC_MAX_RESTARTS": str(run.max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": os.environ.get("TORCHELASTIC_ERROR_FILE", run.error_file),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size()),
    }


def _run_id(run: ScriptRun) -> str:
    """Return a run id that all hosts agree on; "none", as torchrun's, where nothing is known."""
    if os.environ.get("NNODES", "1") == "1":
        return run.unique
    meeting = (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
    return ":".join(each for each in meeting if each) or "none"


# --- Python ---------------------------------------------------------------------------------------


def _script_code(run: ScriptRun, main: types.ModuleType) -> types.CodeType:
    path, source = os.path.abspath(run.target if _is_here(run) else run.origin), run.source
    main.__file__ = path
    main.__loader__ = SourceFileLoader(_MAIN, path)
    main.__dict__.update(__cached__=None, __package__=None)
    if source is None:
        with open(path, "rb") as file:
            source = file.read()
    else:  # tracebacks show the lines that run, whatever this host has there
        text = importlib.util.decode_source(source)
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    return compile(source, path, "exec", dont_inherit=True)


def _module_code(run: ScriptRun, main: types.ModuleType) -> types.CodeType:
    """Return the code of a module, or of a package's ``__main__``; import its parent packages."""
    sys.argv[0] = "-m"  # while the parents are imported, as in Python
    spec = importlib.util.find_spec(run.target)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{run.target}.{_MAIN}")
    code = _code_of(spec)
    if spec is None or code is None:
        raise ImportError(f"No code object available for {run.target}")
    _describe(main, spec)
    sys.argv[0] = spec.origin or run.target
    return code


def _folder_code(run: ScriptRun, main: types.ModuleType) -> types.CodeType:
    """Return the code of the ``__main__`` in a folder or zip file."""
    finder: Any = pkgutil.get_importer(run.target)
    spec = finder.find_spec(_MAIN) if finder is not None else None
    code = _code_of(spec)
    if spec is None or code is None:
        raise ImportError(f"can't find '{_MAIN}' module in {run.target!r}")
    _describe(main, spec)
    return code


def _describe(main: types.ModuleType, spec: ModuleSpec) -> None:
    main.__spec__, main.__loader__, main.__package__ = spec, spec.loader, spec.parent
    main.__file__ = spec.origin
    main.__dict__["__cached__"] = spec.cached


def _code_of(spec: ModuleSpec | None) -> types.CodeType | None:
    get_code = getattr(getattr(spec, "loader", None), "get_code", None)
    if spec is None or get_code is None:
        return None
    code: types.CodeType | None = get_code(spec.name)
    return code


_CODE = {"path": _script_code, "module": _module_code, "folder": _folder_code}


def _forget_shadowed(folder: str) -> None:
    """Forget the modules imported from elsewhere that the script would find in its own folder.

    The template has imported installed packages, and what these import: a script with a folder
    ``datasets`` beside it means its own.
    """
    for name in _modules_in(folder):
        known: Any = sys.modules.get(name)
        if known is None or name in _AT_START or name in sys.builtin_module_names or name == "xmp":
            continue
        file = getattr(known, "__file__", None) or ""
        if file and not file.startswith(os.path.join(folder, "")):
            for each in [n for n in sys.modules if n == name or n.startswith(f"{name}.")]:
                del sys.modules[each]


def _modules_in(folder: str) -> Iterator[str]:
    """Yield a folder's top-level modules and packages; one without __init__.py hides no other."""
    try:
        entries = os.listdir(folder)
    except OSError:
        return
    for entry in entries:
        if entry.endswith(".py"):
            yield entry[:-3]
        elif os.path.exists(os.path.join(folder, entry, "__init__.py")):
            yield entry


# --- other programs -------------------------------------------------------------------------------


def _execute(command: list[str]) -> NoReturn:
    """Become a program that knows nothing of xmp."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and exec keeps that
    # Nothing answers it there, and its default would end the program.
    signal.signal(signals.DUMP_SIGNAL, signal.SIG_IGN)
    sys.stdout.flush()
    sys.stderr.flush()
    # Before exec closes the connection: the supervisor recognises a replica of xmp by its name.
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write(os.path.basename(command[0]))
    os.execvp(command[0], command)
