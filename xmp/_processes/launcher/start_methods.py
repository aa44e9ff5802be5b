"""Which process forks the supervisor of a launch: a template, a script holder or a keeper.

It also remembers after which scripts and functions a fork is not safe: their next launch starts
with fresh interpreters at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from xmp._os import log
from xmp._payload.script import MainSource
from xmp._processes.messages.fork_server import ImportFailed
from xmp._processes.messages.launcher_state import LauncherState
from xmp._processes.report.replica_error import not_imported
from xmp._processes.system import fork_safety
from xmp._processes.system.variables_read import ALL, differs, reads_all
from xmp._processes.terminal.console import in_notebook
from xmp._words.errors import PlanError, ReplicaTimeout, StartError
from xmp._words.types import ForkRules

from .deadlines import Deadlines
from .fork_server_handle import ForkServerHandle
from .job import Call
from .template_key import TemplateKey
from .template_pool import switched_off, templates
from .warm_template import WarmTemplate

__all__ = ["StartMethod", "settled"]

_unsafe: set[Any] = set()
_kernel_threads: list[str] = []
"""What makes every fork of this notebook's kernel unsafe, once that is known."""
H = TypeVar("H", bound=ForkServerHandle)


def settled(call: Call, rules: ForkRules) -> Call:
    """Return the call; in a kernel that cannot be forked, with the default start method.

    ipykernel has ZeroMQ's native threads, so that there ``"fork"`` would always be refused, which
    the documents of torch_xla give for notebooks. What needs a real fork cannot be packed, and the
    error names it.
    """
    if call.settings.start_method != "fork" or not in_notebook():
        return call
    if not _kernel_threads:
        sockets = fork_safety.connected_sockets()
        _kernel_threads[:] = fork_safety.culprits(rules, sockets, python_threads=True)
    if not _kernel_threads:
        return call
    log.warning(
        'start_method="fork" is not safe in a notebook\'s kernel (%s); replicas are started with '
        '"forkserver", which does not fork the kernel',
        "; ".join(_kernel_threads),
        once=True,
    )
    return call.using(start_method="forkserver")


class StartMethod:
    """The fork servers of one launch; ``at_end`` takes what ends those of this launch alone."""

    def __init__(self, key: TemplateKey, at_end: Callable[[Callable[[], None]], Any]) -> None:
        self.key = key
        self._at_end = at_end
        self._template: WarmTemplate | None = None
        """The long-lived one that this launch uses, if any."""
        self._holder: ForkServerHandle | None = None
        self._started = False
        """Whether the template was started for this launch."""

    def keeper(self) -> ForkServerHandle:
        """For ``start_method="spawn"``: it has preloaded nothing and ends with the launch."""
        return self._owned(ForkServerHandle.start((), self.key, "xmp-keeper"))

    def forked_keeper(self, call: Any, leases: Iterable[int]) -> ForkServerHandle:
        """For ``start_method="fork"``; raises StartError with the reason if that is not safe.

        The ``leases`` travel with the order to the replicas that need them: every other copy of a
        listening socket would keep its port open.
        """
        sockets = fork_safety.connected_sockets()
        culprits = fork_safety.culprits(self.key.rules, sockets, python_threads=True)
        if culprits:
            raise StartError(
                f'start_method="fork" is not safe here: {"; ".join(culprits)}; '
                'use start_method="forkserver"',
                code="XMP-S05",
            )
        current = threading.current_thread()
        names = ", ".join(repr(t.name) for t in threading.enumerate() if t is not current)
        if names:
            log.warn_caller(f"Python threads are not forked and may hold locks: {names}")
        return self._owned(ForkServerHandle.fork(call, leases))

    def warm(self) -> WarmTemplate:
        """Return a template that fits; it ends with the launch if the user wants no others."""
        key = self.key
        if switched_off():
            return self._owned(WarmTemplate.of(key))
        self._template = templates.lend(key, self._at_end)
        self._started, self._template.used = not self._template.used, True
        self._template.prepare(key)
        return self._template

    def _owned(self, server: H) -> H:
        self._at_end(server.close)
        return server

    def holder(
        self, template: WarmTemplate, main: MainSource, state: LauncherState, deadlines: Deadlines
    ) -> ForkServerHandle | None:
        """Return the template's child that has imported the script; None if a fork is not safe."""
        holder = template.holder_of(main, state, self.key)

        def ready(seconds: float | None) -> bool:
            return holder.wait_ready(seconds) or holder.refusal is not None or not holder.alive

        try:
            deadlines.wait(ready, lambda: f"{main.path} is being imported")
        except ReplicaTimeout:
            template.forget_holder()
            raise
        if holder.wait_ready():
            self._refuse_read(holder, main.path)
            holder.prepare(self.key)
            self._holder = holder
            return holder
        refusal = holder.refusal
        failure = "" if refusal is not None else template.holder_failure()
        template.forget_holder()
        if failure:
            raise StartError(f"the process that imports {main.path} {failure}", code="XMP-S02")
        if refusal is None:
            if not template.alive:
                raise StartError(template.last_words(), code="XMP-S04")
            raise StartError(
                f"the process that imported {main.path} ended during the import", code="XMP-S02"
            )
        if isinstance(refusal, ImportFailed):
            raise not_imported(main.path, refusal.message, refusal.traceback)
        self.remember_unsafe(main, main.path, refusal.culprits)
        return None

    def _refuse_read(self, holder: ForkServerHandle, path: str) -> None:
        """Raise PlanError where the script's import needs what each replica has its own value of.

        What reads all variables may have meant others: one line says so.
        """
        read = holder.imported.variables_read or ()
        if self.key.env_by_rank and ALL in read:
            log.warning(reads_all(", ".join(self.key.env_by_rank), path), once=True)
        for name in self.key.env_by_rank:
            if name in read:
                raise PlanError(differs(name, path), code="XMP-P05")

    def imports(self) -> tuple[tuple[str, float], ...]:
        """Return the slowest imports of the template, if it was started for this launch."""
        return tuple(self._template.imported.slowest) if self._template and self._started else ()

    def offer(self, imported: Sequence[str]) -> None:
        """Offer the template what launcher and replicas have imported, to try while it is idle."""
        for server in (self._holder, self._template):
            if server is not None:
                server.offer(self.key, imported)

    def is_unsafe(self, *loaded: Any) -> bool:
        """Return whether one of these, when it was loaded, has made a fork unsafe."""
        return not _unsafe.isdisjoint(loaded)

    def remember_unsafe(self, what: Any, name: str, culprits: Sequence[str]) -> None:
        """Report once why replicas get fresh interpreters from now on."""
        if what not in _unsafe:
            text = "replicas get fresh interpreters: after loading %s a fork is not safe (%s)"
            log.warning(text, name, "; ".join(culprits))
        _unsafe.add(what)
