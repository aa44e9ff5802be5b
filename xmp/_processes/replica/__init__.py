"""Code of a replica: its first and last lines, channel to the supervisor, debugger, heartbeat."""

__all__: list[str] = []
