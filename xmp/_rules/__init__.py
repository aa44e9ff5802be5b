"""The rules of a launch: pure functions and small state machines without a clock or a socket.

Time comes in as a number and events as values, so that tests are tables. ``watch`` decides which
replica failed first and what follows; ``limits`` which deadline is next; ``watch_events`` are
what ``watch`` takes; ``restarts`` whether another attempt follows; ``host_rules`` what one host of
several reports and does; ``job_rules`` what their driver does; ``ending_rules`` how a launcher ends
a launch; ``hang_rules`` which rank the others wait for, with ``frame_meanings``; ``notices`` when
that is worth a word. The supervisor runs ``watch`` and ``notices``, the launcher the others. Tests
in ``tests/supervisor``: ``test_watch``, ``test_limits``, ``test_restart_rules``,
``test_host_rules``, ``test_job_rules``, ``test_ending_rules``, ``test_hang_rules``,
``test_notices``; the culprits of a hundred real hangs in ``tests/hangs``.
"""
