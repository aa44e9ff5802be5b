"""In a replica: its first and last lines, its channel to the supervisor, debugger and heartbeat."""

__all__: list[str] = []
