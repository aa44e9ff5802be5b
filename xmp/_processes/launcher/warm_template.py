"""The launcher's handle on a template: which launches may use it, and its script holder."""

from __future__ import annotations

import os
import sys

from xmp._payload.script import MainSource
from xmp._processes.messages.connection import Connection
from xmp._processes.messages.fork_server import StartScriptHolder
from xmp._processes.messages.launcher_state import LauncherState
from xmp._processes.system import stdio, thread_pools
from xmp._types import ForkRules

from .fork_server_handle import ForkServerHandle
from .template_key import TemplateKey, identity_key

__all__ = ["WarmTemplate"]


class WarmTemplate(ForkServerHandle):
    """A template that has imported modules, and at most one script holder that it has forked."""

    def __init__(self, connection: Connection, lifeline: int) -> None:
        super().__init__(connection, lifeline)
        self.used = False
        """Whether a launch has used it."""
        self._identity = identity_key()
        self._holder: tuple[MainSource, ForkServerHandle] | None = None
        self._holder_token = 0

    def misfit(self, key: TemplateKey) -> str:
        """Why a launch with this key may not use the template; empty if it may.

        A variable counts as equal when it has its value from before or after one of the template's
        imports: some modules write into the environment.
        """
        if not self.alive:
            return "it has ended"
        if self._identity != identity_key():
            return "the user, a namespace, the control group or an option of Python is another one"
        ours = key.variables(os.environ)
        names = set(ours) | set(key.variables(self.environments[0]))
        names -= {*thread_pools.one_thread_environment(), *(name for name, _ in key.rules.quiet)}
        for name in names:
            if all(ours.get(name) != known.get(name) for known in self.environments):
                return f"{name} has changed, which an import may read"
        # Where the files of top-level packages agree, so do those of the modules inside.
        others = [n for n, file in self.packages.items() if _file_here(n) not in ("", file)]
        return f"{others[0]} comes from another file here" if others else ""

    def holder_of(
        self, source: MainSource, launcher: LauncherState, rules: ForkRules
    ) -> ForkServerHandle:
        """The handle on the process that has imported this script; starts it if there is none."""
        if self._holder is not None:
            if self._holder[0] == source and self._holder[1].alive:
                return self._holder[1]
            self.forget_holder()
        streams = stdio.standard_streams()
        try:
            self._holder_token, connection, lifeline = self.request(
                lambda token: StartScriptHolder(token, source, launcher, rules), streams
            )
        finally:
            for descriptor in streams:
                os.close(descriptor)
        holder = ForkServerHandle(connection, lifeline)
        holder.asked.update(self.asked)
        self._holder = (source, holder)
        return holder

    def holder_failure(self) -> str:
        """Why the script holder could not be forked; empty if it was."""
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


def _file_here(name: str) -> str:
    return str(getattr(sys.modules.get(name), "__file__", None) or "")
