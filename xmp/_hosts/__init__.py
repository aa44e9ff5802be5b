"""Launches over several hosts: the second ring, which launches on one host do not need.

``carrier/`` is the process beside each launcher of a placed job: roll call, beats, one verdict.
``engines/`` launches from one driver: an agent on each host, and the driver's handle on them.
``other_hosts`` meets the other launchers, ``own_address`` finds this host's address, ``joining``
numbers hosts that have no index. Tests: ``tests/carrier``, ``tests/engines``, ``tests/hosts``.
"""
