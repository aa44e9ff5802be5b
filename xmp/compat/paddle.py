"""The public name of ``xmp.plugins.paddle``."""

from typing import TYPE_CHECKING

from xmp.plugins.paddle.face import *
from xmp.plugins.paddle.face import __all__ as __all__
from xmp.plugins.paddle.face import __doc__ as __doc__

if not TYPE_CHECKING:
    from xmp.plugins.paddle.face import __getattr__ as __getattr__
