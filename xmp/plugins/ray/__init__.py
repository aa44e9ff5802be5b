"""The ``ray`` engine: hosts of a Ray cluster, each with an agent that an actor of xmp starts.

Ray finds the hosts and starts one actor on each (``actor``), which starts ``xmp-host`` there
(``host_process``). That and ``xmp-link`` beside the driver carry everything else over TCP
(``_hosts.stream``). What xmp does on a host is the same as without Ray.

Tests: ``tests/ray``, ``tests/engines/test_ray_*.py``.
"""
