"""The supervisor, one for each launch: it loads the call, forks, watches and ends the replicas."""

__all__: list[str] = []
