"""Functions of the kernel and the interpreter: calls, descriptors, processes, fork safety."""

__all__: list[str] = []
