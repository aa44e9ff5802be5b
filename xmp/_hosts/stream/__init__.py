"""A byte stream between a driver and one of its hosts, and the processes at its two ends.

```
 driver --socket--> xmp-link ==== ssh or srun: its standard streams; TCP ====> xmp-host --> agent
```

The agent and the driver know nothing of the stream: each has a local socket on which packets and
descriptors travel, as on one machine. ``bridge`` carries them: a file travels as its bytes, a
standard stream as what is written to it. So a new way to reach hosts is one command, and where
something else starts ``far`` there, as Ray does, one connection.

- ``frames``: pieces of the stream, sealed by a secret where the stream is not encrypted;
- ``bridge``: the loop of both processes;
- ``near``: the process beside the driver; ``ways``: a command that it starts, or a connection;
- ``boot``, ``far``: what the command runs on the host;
- ``tcp``: how both ends of a connection find and know each other.

Why two more processes: the driver's may be stopped (Ctrl-Z), hold the interpreter's lock or fork,
and the agent may be stopped; a link must beat meanwhile, or either end takes the other for lost.

Tests: ``tests/stream``, ``tests/ssh``, ``tests/ray``.
"""
