"""The launcher and the user in front of it: runs in the launcher, never in a replica.

``console``          lines on standard error; Ctrl-C, Ctrl-Z, Ctrl-\\\\ and SIGTERM during a launch
``progress``         in which phase the replicas are, while a start takes long
``status_line``      one line that is redrawn on a terminal while replicas write there
``lender``           the terminal, or piped standard input, lent to a replica at a breakpoint
``notebook_output``  in a notebook: what replicas write, passed on to the cell

Replicas are in another session: the signals of the terminal do not reach them, so the launcher
passes on what they must know. The thread that waits for the launch does all of this, or a signal
handler in it; only ``notebook_output`` has a thread.
"""

__all__: list[str] = []
