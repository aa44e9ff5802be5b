"""Queries of Compute Engine's metadata server about a TPU host, with one deadline for all.

The vendor's libraries query it with time-outs of a minute and more, or none: on a host that cannot
reach it they hang for a long time. Here all queries together end after ``DEADLINE``.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping

from xmp._os import signals
from xmp._os.names import connected

__all__ = ["SKIP", "attributes"]

SKIP = "TPU_SKIP_MDS_QUERY"

KEYS = ("tpu-env", "accelerator-type", "agent-worker-number", "worker-network-endpoints")
DEADLINE = 2.0  # seconds
SERVER = "169.254.169.254"  # the link-local address needs no name service, which could hang too
PATH = "/computeMetadata/v1/instance/attributes/"
FLAVOR = b"metadata-flavor: google"


def attributes(env: Mapping[str, str]) -> dict[str, str]:
    """Query the attributes in ``KEYS`` that this host has, once per process; none without a server.

    ``GCE_METADATA_IP`` names another server. ``TPU_SKIP_MDS_QUERY``, with any value, means that
    there is none, as it does for libtpu.
    """
    if SKIP in env:
        return {}
    return dict(_asked(env.get("GCE_METADATA_IP") or SERVER))


@functools.lru_cache(maxsize=4)
def _asked(server: str) -> Mapping[str, str]:
    host, _, port = server.partition(":")
    deadline = time.monotonic() + DEADLINE
    found = {}
    for key in KEYS:
        try:
            answer = _get(host, int(port or 80), f"{PATH}{key}", deadline)
        except (OSError, ValueError) as error:
            if signals.from_handler(error):
                raise
            return {}
        if answer is not None:
            found[key] = answer
    return found


def _get(host: str, port: int, path: str, deadline: float) -> str | None:
    """Return the attribute's text; None if there is none. Raise OSError when time is up."""
    with connected(host, port, _left(deadline)) as connection:
        # With HTTP/1.0 the answer ends where the connection does: it has no chunks.
        request = f"GET {path} HTTP/1.0\r\nHost: {host}\r\nMetadata-Flavor: Google\r\n\r\n"
        connection.sendall(request.encode())
        answer = b""
        while True:
            connection.settimeout(_left(deadline))
            part = connection.recv(65536)
            if not part:
                break
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    if FLAVOR not in head.lower():
        raise ValueError("not a metadata server")  # a captive portal answers everything
    status = head.split(None, 2)[1:2]
    return body.decode(errors="replace").strip() if status == [b"200"] else None


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the metadata server took too long")
    return left
