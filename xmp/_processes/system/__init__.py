"""Functions of the kernel and the interpreter: calls, descriptors, processes, fork safety.

``linux`` has the system calls that Python lacks, ``births`` and ``processes`` tie processes to each
other, ``descriptors`` holds them, ``fork_safety`` says whether a fork is safe, ``finalisation``
finishes what a process leaves open, ``surroundings`` refuses hosts that lack what a launch needs,
``interpreter`` makes fresh ones. ``records`` is the memory in which each rank says where it is,
``doing`` what the kernel says of it. Any process may use it. Tests: ``tests/system``,
``tests/launcher/test_bare_hosts.py``, ``tests/replica/test_unfinished.py``.
"""

__all__: list[str] = []
