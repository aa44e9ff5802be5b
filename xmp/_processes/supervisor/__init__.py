"""The supervisor, one for each launch: it loads the call, forks, watches and ends the replicas.

``supervisor_main`` is the process, ``loading`` and ``making`` start the replicas, ``loop`` waits,
``message_handlers`` take what comes, ``monitor`` carries out what ``_rules/watch`` decides.
``checks`` says what a replica may send, ``voices`` what its children may. It has no thread and
touches no device; of the user's code it runs only what loads the call.
Tests: ``tests/supervisor``, ``tests/report``.
"""

__all__: list[str] = []
