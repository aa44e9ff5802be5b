"""What looks at the host and at this process: the only code that does, but for the engine.

``probe/`` gathers the facts; ``ports`` holds ports; ``names`` looks up addresses within a limit;
``proc`` reads /proc; ``signals`` says when handlers of the program may run, ``own_handlers`` are
xmp's; ``log`` is the log; ``marks`` says whose a process is; ``imports`` imports frameworks;
``excepthook`` shortens what an uncaught error prints. Any process may use it.
Tests: ``tests/host``, ``tests/project/test_log.py``, ``tests/launcher/test_signal_handlers.py``.
"""
