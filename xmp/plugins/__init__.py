"""Plug-ins: the third ring. The core finds them by ``xmp._registry`` and imports none by name.

Each can be deleted from a checkout without harm to the rest. ``xmp.compat`` has public names for
those that are faces of other launchers.
"""
