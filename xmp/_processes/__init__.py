"""The engine: starts, watches and ends processes, and does not know what a device is.

launcher side   context (the handle) -> launch -> parents -> templates, warm
template        template (forks supervisors, ends what they leave behind)
supervisor      supervisor (parent of the replicas) -> output, safety, pools
replica         replica (the child's first and last lines)
below them all  order (what is asked), state, wire (messages), kernel (system calls)
"""

__all__: list[str] = []
