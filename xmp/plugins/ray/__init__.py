"""The ``ray`` engine: hosts of a Ray cluster, each with an agent that an actor of xmp starts.

Ray finds the hosts, starts one actor on each (``actor``, ``relay``), carries bytes between them and
the driver (``agent``, ``files``), and sees hosts end (``group``). What xmp does on a host is the
same as without Ray.

Tests: ``tests/ray``, ``tests/engines/test_ray_*.py``.
"""
