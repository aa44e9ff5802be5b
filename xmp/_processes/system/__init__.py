"""What the kernel and the interpreter give: calls, descriptors, processes, fork safety."""

__all__: list[str] = []
