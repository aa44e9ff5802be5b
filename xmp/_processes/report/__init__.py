"""The text and the exceptions for failures, time-outs, stacks and slow starts."""

__all__: list[str] = []
