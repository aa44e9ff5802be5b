"""The fork server, which forks the supervisors: template, script holder and keeper."""

__all__: list[str] = []
