"""The replicas' output: the supervisor copies it to the launcher's streams and to log files."""

__all__: list[str] = []
