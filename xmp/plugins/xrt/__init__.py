"""The ``xrt`` runtime: torch_xla before PJRT. ``runtime`` plans it, ``framework`` enters it."""
