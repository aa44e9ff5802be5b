"""Lightning on xmp: ``import xmp.compat.lightning``, then ``Trainer(strategy="xmp", devices=2)``.

The names, arguments and results are those of Lightning 2.6 with ``strategy="ddp_spawn"``. The
import registers "xmp", "xmp_find_unused_parameters_true" and "xmp_find_unused_parameters_false"
with ``lightning`` and with the standalone ``pytorch_lightning``, whichever the program imports,
before or after this module. ``XmpStrategy`` is the class for the package that the program has
imported, and for ``lightning`` where it has imported both; the other one is
``_of_pytorch_lightning.XmpStrategy``. Fabric, also that of the standalone ``lightning_fabric``, has
the same names, and ``XmpFabricStrategy``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from xmp._os.imports import on_import
from xmp._words.errors import PlanError

if TYPE_CHECKING:
    from ._fabric_of_lightning import XmpFabricStrategy
    from ._of_lightning import XmpStrategy

__all__ = ["XmpFabricStrategy", "XmpStrategy"]

_TRAINERS = {"lightning.pytorch": "_of_lightning", "pytorch_lightning": "_of_pytorch_lightning"}
"""The package of each Trainer, and the module here that has xmp's classes for it."""
_FABRICS = {
    "lightning.fabric": "_fabric_of_lightning",
    "lightning_fabric": "_fabric_of_lightning_fabric",
}
"""The same for each Fabric."""


def _installed() -> None:
    """Have every one of Lightning's packages register xmp's strategies when it is imported."""
    for package, own in {**_FABRICS, **_TRAINERS}.items():
        on_import(package, lambda _, name=own: _import(name))  # type: ignore[misc]


def _import(own: str) -> Any:
    return importlib.import_module(f"{__package__}.{own}")


def _package(own: Mapping[str, str]) -> str:
    """Return the package that the program has imported, else one that is installed.

    Raise PlanError where none is installed.
    """
    for package in own:
        if package in sys.modules:
            return package
    for package in own:
        if importlib.util.find_spec(package.partition(".")[0]) is not None:
            return package
    raise PlanError(
        "xmp.compat.lightning needs Lightning: none of its packages is "
        "installed. pip install lightning",
        code="XMP-P06",
    )


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        own = _TRAINERS if name == "XmpStrategy" else _FABRICS
        return getattr(_import(own[_package(own)]), name)

    def __dir__() -> list[str]:
        """List the classes, which appear only at their first use, and none of our own names."""
        return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


_installed()
