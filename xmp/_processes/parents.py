"""Which process forks the supervisor of a launch: a template, a script holder or a keeper.

Here is also decided that a fork is not safe after a certain script or function was loaded, and
remembered: its next launch starts with fresh interpreters at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from xmp._errors import ReplicaTimeout, StartError
from xmp._payload.script import MainSource

from . import safety, supervisor
from .needs import Needs
from .patience import Patience
from .state import LauncherState
from .templates import switched_off, templates
from .terminal import say, say_once
from .warm import Template

__all__ = ["Parents", "forget_in_child"]

_unsafe: set[Any] = set()
_handing_over = threading.Lock()


def forget_in_child() -> None:
    """In a forked child of the launcher: the fork was made under this lock."""
    global _handing_over
    _handing_over = threading.Lock()
    templates.forget()


class Parents:
    """The parents of one launch's supervisor; ``own`` takes those that end with the launch."""

    def __init__(self, needs: Needs, own: Callable[[Callable[[], None]], Any]) -> None:
        self.needs = needs
        self.template: Template | None = None
        """The long-lived one that this launch uses, if it does."""
        self._own = own
        self._started = False
        self._holder: Template | None = None

    def keeper(self) -> Template:
        """For fresh interpreters: nothing preloaded, ends with the launch."""
        return self._owned(Template.start((), self.needs.rules, "xmp-keeper"))

    def forked_keeper(self, call: Any, leases: Iterable[int]) -> Template:
        """For ``start_method="fork"``: refused with the culprit's name where it is not safe.

        The ``leases`` come with the order, to those whose they are: a copy of one that listens
        would keep its port alive in every other replica.
        """
        sockets = safety.connected_sockets()
        culprits = safety.culprits(self.needs.rules, sockets, python_threads=True)
        if culprits:
            raise StartError(
                f'start_method="fork" is not safe here: {"; ".join(culprits)}; '
                'use start_method="forkserver"'
            )
        self._note_threads()
        with _handing_over:
            supervisor.inherited[:] = [call]
            try:
                return self._owned(Template.fork(leases))
            finally:
                supervisor.inherited.clear()

    def _note_threads(self) -> None:
        own = threading.current_thread()
        names = ", ".join(repr(t.name) for t in threading.enumerate() if t is not own)
        if names:
            say_once(f"xmp: Python threads are not forked and may hold locks: {names}")

    def warm(self) -> Template:
        """A template that fits; one that ends with the launch where they are switched off."""
        if switched_off():
            return self._owned(Template.start(self.needs.modules, self.needs.rules, "xmp-template"))
        self.template = templates.get(self.needs)
        self._started, self.template.used = not self.template.used, True
        self.template.prepare(self.needs)
        return self.template

    def _owned(self, template: Template) -> Template:
        self._own(template.close)
        return template

    def holder(
        self, template: Template, main: MainSource, state: LauncherState, patience: Patience
    ) -> Template | None:
        """The template's child that has imported the script; None where forking it is not safe."""
        holder = template.holder_of(main, state, self.needs.rules)

        def heard(seconds: float | None) -> bool:
            ready = holder.wait_ready(seconds)
            return ready or holder.refusal is not None or not holder.alive

        try:
            patience.wait(heard, lambda: f"{main.path} is being imported")
        except ReplicaTimeout:
            template.forget_holder()
            raise
        if holder.wait_ready():
            holder.prepare(self.needs)
            self._holder = holder
            return holder
        refusal = holder.refusal
        template.forget_holder()
        if refusal is None and not template.alive:
            raise StartError(template.last_words())
        if refusal is None:
            raise StartError(f"importing {main.path} ended the process that did it")
        if refusal[0] == "failed":
            raise StartError(f"importing {main.path} failed: {refusal[2]}\n\n{refusal[1].rstrip()}")
        self.remember_unsafe(main, main.path, refusal[1])
        return None

    def imports(self) -> tuple[tuple[str, float], ...]:
        """The slowest imports of the template, if it was started for this launch."""
        return tuple(self.template.slowest) if self.template and self._started else ()

    def offer(self, imported: Sequence[str]) -> None:
        """Offer what launcher and replicas have imported, to be tried while nobody waits."""
        for template in (self._holder, self.template):
            if template is not None:
                template.offer(self.needs, imported)

    def is_unsafe(self, *loaded: Any) -> bool:
        """Whether a fork was not safe after one of these was loaded."""
        return not _unsafe.isdisjoint(loaded)

    def remember_unsafe(self, what: Any, name: str, culprits: Sequence[str]) -> None:
        """Say once why replicas get fresh interpreters from now on."""
        if what not in _unsafe:
            say(
                f"xmp: replicas get fresh interpreters: after loading {name} a fork is not safe "
                f"({'; '.join(culprits)})"
            )
        _unsafe.add(what)
