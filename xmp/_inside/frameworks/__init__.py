"""Prepares a replica before the user's function runs: one module per framework.

Each has ``enter(info) -> Framework``, called once after the environment is set, and
``attach(info) -> Framework`` for a process that another launcher started, which changes nothing.

Tests: ``tests/frameworks``.
"""
