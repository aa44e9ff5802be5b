"""accelerate on xmp: ``face`` is ``xmp.compat.accelerate``, ``world`` its state in a replica.

Tests: ``tests/compat/test_accelerate*.py``, ``tests/frameworks/test_accelerate_world.py``.
"""
