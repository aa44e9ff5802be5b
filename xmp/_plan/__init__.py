"""The plan of a launch: request and facts in, a frozen ``JobPlan`` out, by pure functions.

``planner`` is the entry. ``runtimes/`` has a file for each device runtime, ``clusters/`` reads the
variables of schedulers and launchers, ``topology`` knows TPU slices, ``runtime_choice`` picks the
runtime. ``plan_text``, ``plan_json`` and ``facts_schema`` show plans and read facts; ``secrets``
masks values. Nothing here opens a file or a socket or asks for the time: the same facts give the
same plan, on any machine. The launcher plans; ``xmp plan`` does it for recorded hosts.
Tests: ``tests/plans``.
"""
