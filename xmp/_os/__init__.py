"""The code that looks at the host and at this process; besides it, only the engine does.

``probe/`` gathers the facts; ``ports`` holds ports; ``names`` looks up addresses within a limit;
``proc`` reads /proc; ``signals`` decides when the program's signal handlers run, ``own_handlers``
are xmp's; ``log`` is the log; ``marks`` names the launcher of a process; ``imports`` imports
frameworks; ``excepthook`` shortens what an uncaught error prints. Any process may use it.
Tests: ``tests/host``, ``tests/project/test_log.py``, ``tests/launcher/test_signal_handlers.py``.
"""
