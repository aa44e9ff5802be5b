"""MegEngine's launcher on xmp; its public name is ``xmp.compat.megengine``."""
