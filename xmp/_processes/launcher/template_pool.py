"""The templates of this process: which one fits a launch, and when another is started."""

from __future__ import annotations

import os
import threading

from .needs import Needs
from .warm import Template

__all__ = ["Templates", "switched_off", "templates"]

_MOST = 2


def switched_off() -> bool:
    """Whether the user wants no process to outlive a launch (``XMP_TEMPLATE=off``)."""
    return os.environ.get("XMP_TEMPLATE", "").lower() in ("off", "0", "no", "false")


class Templates:
    """At most two live; the one that was used longer ago ends first."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._warm: list[Template] = []
        self._leaving: list[Template] = []

    def get(self, needs: Needs) -> Template:
        """One that fits, started now if there is none."""
        with self._lock:
            self._tidy()
            fitting = next((t for t in self._warm if t.fits(needs)), None)
            if fitting is None:
                while len(self._warm) >= _MOST:
                    old = self._warm.pop(0)
                    old.drop()
                    self._leaving.append(old)
                fitting = Template.start(needs.modules, needs.rules, "xmp-template")
            else:
                self._warm.remove(fitting)
            self._warm.append(fitting)
            return fitting

    def _tidy(self) -> None:
        for template in [t for t in self._warm if not t.alive]:
            self.discard(template)
        self._leaving = [t for t in self._leaving if not t.has_exited()]

    def discard(self, template: Template) -> str:
        """Forget one that does not answer; returns the last lines that it wrote."""
        said = template.log()
        with self._lock:
            if template in self._warm:
                self._warm.remove(template)
        template.close()
        return said

    def close(self) -> None:
        """End them all and wait."""
        with self._lock:
            all_of_them = [*self._warm, *self._leaving]
            self._warm, self._leaving = [], []
        for template in all_of_them:
            template.close()

    def forget(self) -> None:
        """In a forked child: none of them is ours, and their lock may be held by nobody."""
        self.__init__()  # type: ignore[misc]


templates = Templates()
