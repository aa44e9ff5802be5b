"""The fork server, which forks the supervisors: template, script holder and keeper.

``template_main`` begins one, ``server`` answers the launcher, ``preloading`` imports packages and
tries whether they leave a fork safe, ``script_holder`` has the user's script imported, ``spare``
keeps a supervisor ready. It has one thread and no device. Tests: ``tests/template``.
"""

__all__: list[str] = []
