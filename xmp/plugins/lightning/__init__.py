"""Lightning on xmp: strategies for its Trainer and Fabric; ``face`` is ``xmp.compat.lightning``.

Tests: ``tests/compat/test_lightning_*.py``.
"""
