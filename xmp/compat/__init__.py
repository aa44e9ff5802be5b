"""Other launchers' names, signatures and defaults on top of xmp: one module for each of them."""
