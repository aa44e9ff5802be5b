"""The launcher's side towards the user: this code runs in the launcher, never in a replica.

``console``          lines on standard error; Ctrl-C, Ctrl-Z, Ctrl-\\\\ and SIGTERM during a launch
``progress``         the phases of the replicas, while a start takes long
``status_line``      one line that is redrawn on a terminal while replicas write there
``lender``           the terminal, or piped standard input, lent to a replica at a breakpoint
``notebook_output``  the output of replicas, passed on to a notebook's cell

Replicas are in another session, where the terminal's signals do not reach them, so the launcher
passes these on. The thread that waits for the launch, or a signal handler in it, does all of this;
only ``notebook_output`` has a thread of its own.

Tests: ``tests/terminal``, ``tests/notebooks``.
"""

__all__: list[str] = []
