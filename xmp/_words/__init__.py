"""The words of xmp: frozen values, protocols and exceptions, without an effect and without logic.

Every other room uses them, and they use nothing but each other. ``types`` has requests, facts and
plans; ``errors`` what users catch; ``framework`` what a replica expects of a framework;
``replica_info`` what ``xmp.replica()`` returns; ``event`` what ``spawn(events=)`` reports;
``record`` where a rank is among the others; ``host_words`` the fields that hosts tell each other.
Any process may import them.
Tests: ``tests/plans``, ``tests/project/test_reprs.py``.
"""
