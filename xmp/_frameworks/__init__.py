"""What runs in a replica before the user's function: one module for each framework.

Each has ``enter(info) -> Framework``, called once after the environment is set, and
``attach(info) -> Framework``, which changes nothing: for a process that something else started.
"""

__all__: list[str] = []
