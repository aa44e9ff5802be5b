"""The public name of ``xmp.plugins.lightning``."""

from typing import TYPE_CHECKING

from xmp.plugins.lightning.face import __all__ as __all__
from xmp.plugins.lightning.face import __doc__ as __doc__

if TYPE_CHECKING:
    from xmp.plugins.lightning.face import *
else:
    from xmp.plugins.lightning.face import __dir__ as __dir__
    from xmp.plugins.lightning.face import __getattr__ as __getattr__
