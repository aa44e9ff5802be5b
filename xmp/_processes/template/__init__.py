"""In template, script holder and keeper: the fork server, which forks the supervisors."""

__all__: list[str] = []
