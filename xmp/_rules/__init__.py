"""The rules of a launch: pure functions and small state machines without a clock or a socket.

Time comes in as a number and events as values, so that tests are tables. ``watch`` decides which
replica failed first and what follows; ``limits`` which deadline is next; ``watch_events`` are
what ``watch`` takes. The supervisor runs ``watch``, the launcher ``limits``.
Tests: ``tests/supervisor/test_watch.py``, ``tests/supervisor/test_limits.py``.
"""
