"""The supervisor, one for each launch: it loads the call, forks, watches and ends the replicas.

``supervisor_main`` is the process, ``loading`` and ``making`` start the replicas, ``loop`` waits,
``message_handlers`` take what comes, ``monitor`` carries out what ``_rules/watch`` decides.
``message_checks`` says what a replica may send, ``heard_voices`` what its children may;
``hang_watch`` says unasked who has not come, ``hang_places`` where all are. It has no thread and
touches no device; of the user's code it runs only what loads the call.
Tests: ``tests/supervisor``, ``tests/report``.
"""

__all__: list[str] = []
