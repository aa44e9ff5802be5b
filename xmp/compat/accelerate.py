"""The public name of ``xmp.plugins.accelerate``."""

from xmp.plugins.accelerate.face import *
from xmp.plugins.accelerate.face import __all__ as __all__
from xmp.plugins.accelerate.face import __doc__ as __doc__
