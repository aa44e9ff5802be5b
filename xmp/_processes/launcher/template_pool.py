"""The templates of this process: which one a launch uses, and when another is started."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from xmp._os import log
from xmp._processes.system.environment_changes import is_off

from .fork_server_handle import ForkServerHandle
from .template_key import TemplateKey
from .warm_template import WarmTemplate

__all__ = ["TemplatePool", "switched_off", "templates"]

_MOST = 2


def switched_off() -> bool:
    """Return whether the user wants no process to outlive a launch (``XMP_TEMPLATE=off``)."""
    return is_off("XMP_TEMPLATE")


class TemplatePool:
    """At most two templates; a third one replaces the least recently used."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._warm: list[WarmTemplate] = []
        self._leaving: list[WarmTemplate] = []
        self._users: Counter[WarmTemplate] = Counter()
        """How many launches run on each."""

    def lend(self, key: TemplateKey, at_end: Callable[[Callable[[], None]], Any]) -> WarmTemplate:
        """One that fits, for a launch; ``at_end`` gets what the launch calls at its end."""
        with self._lock:
            template = self.get(key)
            self._users[template] += 1
        at_end(lambda: self._give_back(template))
        return template

    def _give_back(self, template: WarmTemplate) -> None:
        with self._lock:
            self._users -= Counter([template])  # removes those that no launch uses
            self._drop_unused([template] if template in self._leaving else [])

    def _drop_unused(self, leaving: Iterable[WarmTemplate]) -> None:
        """Let those end on which no launch runs, or still waits for its supervisor."""
        for template in leaving:
            if template not in self._users:
                template.drop()

    def get(self, key: TemplateKey) -> WarmTemplate:
        """Return a template that fits; start one if there is none."""
        with self._lock:
            for gone in [t for t in self._warm if not t.alive]:
                self.discard(gone)
            self._leaving = [t for t in self._leaving if not t.has_exited()]
            fitting = next((t for t in self._warm if _fits(t, key)), None)
            if fitting is None:
                while len(self._warm) >= _MOST:
                    self._leaving.append(self._warm.pop(0))
                    self._drop_unused(self._leaving[-1:])
                fitting = WarmTemplate.of(key)
                names = ", ".join(sorted({name.partition(".")[0] for name in key.modules}))
                log.debug("template %d started for %s", fitting.pid, names or "no module")
            else:
                log.debug("template %d fits", fitting.pid)
                self._warm.remove(fitting)
            self._warm.append(fitting)
            return fitting

    def discard(self, template: ForkServerHandle) -> str:
        """Forget one that does not answer; returns the last lines that it wrote."""
        written = template.log()
        with self._lock:
            if template in self._warm:
                self._warm.remove(template)
        template.close()
        return written

    def end_moved(self) -> None:
        """End those with packages that ``sys.path`` has elsewhere by now."""
        with self._lock:
            for template in [t for t in self._warm if t.alive and t.has_moved()]:
                self.discard(template)

    def close(self) -> None:
        """End them and wait; one on which launches still run ends with the last of them."""
        with self._lock:
            all_of_them = [*self._warm, *self._leaving]
            self._warm, self._leaving = [], [t for t in all_of_them if t in self._users]
            unused = [t for t in all_of_them if t not in self._users]
        for template in unused:
            template.close()

    def forget(self) -> None:
        """Start again empty, in a forked child: another thread of the parent may hold the lock."""
        self.__init__()  # type: ignore[misc]


def _fits(template: WarmTemplate, key: TemplateKey) -> bool:
    why = template.misfit(key)
    if why:
        log.debug("template %d does not fit: %s", template.pid, why)
    return not why


templates = TemplatePool()
