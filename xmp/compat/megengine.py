"""The public name of ``xmp.plugins.megengine``."""

from typing import TYPE_CHECKING

from xmp.plugins.megengine.face import *
from xmp.plugins.megengine.face import __all__ as __all__
from xmp.plugins.megengine.face import __doc__ as __doc__

if not TYPE_CHECKING:
    from xmp.plugins.megengine.face import __getattr__ as __getattr__
