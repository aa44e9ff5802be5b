"""The text and the exceptions for failures, time-outs and stacks."""

__all__: list[str] = []
