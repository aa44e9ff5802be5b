"""What users call to launch: ``spawn``, ``launch``, ``launcher``, ``run_script`` and the verbs.

``checks`` and ``call_checks`` refuse bad arguments before any process exists. ``host`` is one
host's share of a launch: facts, plan, ports, start, outcomes. ``here`` runs the function in this
process (``nprocs=1``), ``as_rank`` as a rank that another launcher has started. All of it runs in
the user's process. Tests: ``tests/launcher``, ``tests/project/test_typed_face.py``.
"""
