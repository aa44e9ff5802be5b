"""A replica's life, around the user's function: its first and last lines.

``replica_main`` runs the function, ``role`` says who the replica is, ``reports`` and ``channel``
tell the supervisor, ``settling`` takes the state of the launcher, ``seeding`` the random streams,
``exit`` ends the process with nothing lost. ``fresh_interpreter`` is the beginning where nothing is
forked, ``heartbeat`` shows progress, ``breakpoints`` and ``debugger`` stop one rank, ``notebook``
and ``display`` send what a cell shows. Tests: ``tests/replica``, ``tests/terminal``.
"""

__all__: list[str] = []
