"""A name service that never answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from xmp._os.names import _is_address

__all__ = ["silent_names"]


@pytest.fixture
def silent_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Names get no answer until the test has ended; addresses need none."""
    released, real, asking = threading.Event(), socket.getaddrinfo, list[threading.Thread]()

    def never(host: str, *rest: object, **more: object) -> object:
        if not _is_address(host):
            asking.append(threading.current_thread())
            released.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "released")
        return real(host, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", never)
    yield
    released.set()
    for thread in asking:
        thread.join()
