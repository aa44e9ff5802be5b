"""Texts and exceptions for failures, time-outs and stacks.

The launcher makes most of them; a replica formats its own traceback, and the supervisor reports
where the replicas of a slow start are.

Tests: ``tests/report``.
"""

__all__: list[str] = []
