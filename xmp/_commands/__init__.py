"""The words of the command line: a module each, whose ``run`` prints and returns the status."""

__all__: list[str] = []
