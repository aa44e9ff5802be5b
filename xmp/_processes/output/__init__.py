"""In the supervisor: copies what replicas write to the launcher's streams and to log files."""

__all__: list[str] = []
