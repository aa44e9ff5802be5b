"""A probe of the address at which the launchers meet, from another host."""

from __future__ import annotations

from xmp._os.names import connected

from .sealed import GREETING_SIZE, MAGIC

__all__ = ["reach"]

SECONDS = 3.0


def reach(address: str, port: int) -> str:
    """Return "xmp" for a coordinator, "another program", or why nothing was reached.

    A coordinator speaks first, so nothing is sent.
    """
    try:
        connection = connected(address, port, SECONDS)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    with connection:
        try:
            greeting = connection.recv(GREETING_SIZE)
        except OSError:
            return "another program"
    return "xmp" if greeting.startswith(MAGIC) else "another program"
