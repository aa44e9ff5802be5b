"""The launcher's handle on a template: which launches may use it, and its script holder."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

from xmp._os import log
from xmp._payload.script import MainSource
from xmp._processes.messages.connection import Connection
from xmp._processes.messages.fork_server import StartScriptHolder
from xmp._processes.messages.launcher_state import LauncherState
from xmp._processes.system import stdio, thread_pools

from . import written_variables
from .fork_server_handle import ForkServerHandle
from .template_key import TemplateKey, identity_key

__all__ = ["WarmTemplate"]

_READY_WAIT = 60.0
"""Seconds: a new template would have the same imports before it."""


class WarmTemplate(ForkServerHandle):
    """A template that has imported modules, and at most one script holder that it has forked."""

    def __init__(self, connection: Connection, lifeline: int) -> None:
        super().__init__(connection, lifeline)
        self.used = False
        """Whether a launch has used it."""
        self._identity = identity_key()
        self._env: frozenset[tuple[str, str]] = frozenset()
        """What ``env=`` sets in the launch for which it was started."""
        self._holder: tuple[MainSource, ForkServerHandle, frozenset[tuple[str, str]]] | None = None
        """Its script, the handle, and what ``env=`` set."""
        self._holder_token = 0

    @classmethod
    def of(cls, key: TemplateKey) -> WarmTemplate:
        """Start one for this key."""
        written_variables.note()
        self = cls.start(key.modules, key, "xmp-template")
        self._env = frozenset(key.env)
        return self

    def misfit(self, key: TemplateKey) -> str:
        """Return why a launch with this key may not use the template; empty if it may."""
        if not self.alive:
            return "it has ended"
        if self._identity != identity_key():
            return "the user, a namespace, the control group or an option of Python is another one"
        name = self._changed_variable(key)
        if name and not self._ready and self.wait_ready(_READY_WAIT):
            name = self._changed_variable(key)  # its own imports may have written the same
        if name:
            return f"{name} has changed, which an import may read"
        # Where the files of top-level packages agree, so do those of the modules inside.
        packages = self.imported.packages.items()
        others = [name for name, file in packages if _file_here(name) not in ("", file)]
        return f"{others[0]} comes from another file here" if others else ""

    def has_moved(self) -> bool:
        """Return whether an import in a fresh process would take a package from another file.

        For a launcher that imports none of them itself.
        """
        known = [(name, file) for name, file in self.imported.packages.items() if file]
        found = ((file, PathFinder.find_spec(name)) for name, file in known)
        return any(spec is not None and spec.origin not in (None, file) for file, spec in found)

    def _changed_variable(self, key: TemplateKey) -> str:
        """Return a variable that an import may depend on and that has another value now."""
        known, ours = self.imported, key.environment()
        names = key.variables(ours) | key.variables(known.environments[0])
        # Of what env= sets, also what no table knows: a library may have read it.
        given = self._env ^ set(key.env)
        names |= {n for n, _ in given if not key.is_set_later(n) and known.may_have_read(n)}
        names -= {*thread_pools.one_thread_environment(), *dict(key.rules.quiet)}
        names -= written_variables.of_imports().keys() - dict(key.env).keys()
        return known.first_changed(ours, names)

    def holder_of(
        self, source: MainSource, launcher: LauncherState, key: TemplateKey
    ) -> ForkServerHandle:
        """Return the handle on the process that has imported this script; start it if needed."""
        env = frozenset(key.env)
        if self._holder is not None:
            known, holder, seen = self._holder
            changed = _changed(holder, launcher, key, {name for name, _ in env ^ seen})
            if known == source and holder.alive and not changed:
                return holder
            if changed:
                log.debug("%s is imported again: %s", source.path, changed)
            self.forget_holder()
        streams = stdio.standard_streams()
        try:
            self._holder_token, connection, lifeline = self.request(
                lambda token: StartScriptHolder(token, source, launcher, key.rules), streams
            )
        finally:
            for descriptor in streams:
                os.close(descriptor)
        holder = ForkServerHandle(connection, lifeline)
        holder.asked.update(self.asked)
        holder.imported.environments.append(launcher.environment)
        self._holder = (source, holder, env)
        return holder

    def holder_failure(self) -> str:
        """Return why the script holder could not be forked; empty if it was."""
        return self.fork_failure(self._holder_token)

    def forget_holder(self) -> None:
        """End the script holder and wait for it."""
        if self._holder is not None:
            holder, self._holder = self._holder[1], None
            holder.kill_if_stopped()
            holder.drop()
            if holder.pid and not self._dead:
                self.wait_end(holder.pid)

    def close(self) -> None:
        """End the script holder and the template and wait for them."""
        self.kill_if_stopped()  # one that is stopped would not report the holder's end
        self.forget_holder()
        super().close()

    def drop(self) -> None:
        """Close our ends of both without waiting."""
        super().drop()
        if self._holder is not None:
            self._holder[1].drop()


def _changed(
    holder: ForkServerHandle, launcher: LauncherState, key: TemplateKey, given: set[str]
) -> str:
    """Return why a script must be imported again: which variable has changed, who has read it.

    ``given``: those in which ``env=`` differs. They are for the replicas, so that what a library
    has read counts too; what the program has set between launches is its own.
    """
    known = holder.imported
    own = known.changed_since(launcher.environment)
    names = {name for name in given | own if known.may_have_read(name)}
    names = {name for name in names if name in given or not key.is_set_later(name)}
    names -= thread_pools.one_thread_environment().keys()
    read = {name for name in names if name in given or known.reader_of(name)}
    if name := known.first_changed(launcher.environment, read):
        reader = known.reader_of(name) or "a library"
        return f"{name} has changed, which {reader} has read at its import"
    if name := known.first_changed(launcher.environment, names):
        log.debug("%s has changed; only libraries have read it, which stay as they are", name)
    return ""


def _file_here(name: str) -> str:
    return str(getattr(sys.modules.get(name), "__file__", None) or "")
