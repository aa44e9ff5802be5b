"""Paddle on xmp: its runtime, how a replica enters it, and the face ``xmp.compat.paddle``.

``runtime`` plans, ``framework`` readies a replica, ``face`` has Paddle's names. Tests:
``tests/paddle`` (with Paddle), ``tests/compat/test_paddle_*.py``.
"""
