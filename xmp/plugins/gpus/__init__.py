"""Runtimes of GPUs and accelerators of other vendors: AMD's, Intel's, AWS's.

Tests: ``tests/plans/test_plan_gpus.py``.
"""
