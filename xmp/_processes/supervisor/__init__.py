"""In the supervisor, one a launch: it loads the call, forks the replicas, watches and ends them."""

__all__: list[str] = []
