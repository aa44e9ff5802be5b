"""Names of hosts of which the name service says nothing, or knows nothing."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator

import pytest

from tests.support.network_names import silent_names
from xmp._os import signals
from xmp._os.names import connected, is_here, looked_up
from xmp._os.ports import lease
from xmp._plan.clusters import placement
from xmp._words.errors import PlanError, PortError
from xmp._words.types import HostFacts, PortNeed

__all__ = ["silent_names"]


@contextlib.contextmanager
def _handler(error: type[BaseException]) -> Iterator[None]:
    def raises(*_: object) -> None:
        raise error("of the program's handler")

    before = signal.signal(signal.SIGALRM, raises)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


LOOK_UPS = {
    "looked_up": lambda: looked_up("pod-0.svc", seconds=60),
    "connected": lambda: connected("pod-0.svc", 80, 60),
    "lease": lambda: lease([PortNeed("store", "listen", "pod-0.svc", 29500)]),
}


@pytest.mark.parametrize("name", LOOK_UPS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_a_signal_ends_a_look_up(silent_names: None, name: str, error: type[BaseException]) -> None:
    with pytest.raises(error, match="of the program's handler"), _handler(error):
        with signals.deferred():
            LOOK_UPS[name]()


def test_a_look_up_has_a_limit(silent_names: None) -> None:
    with pytest.raises(TimeoutError, match=r"not answered for 0\.05 s"):
        looked_up("pod-0.svc", seconds=0.05)
    assert looked_up("127.0.0.3", 80, socket.SOCK_STREAM)[0][4] == ("127.0.0.3", 80)


def test_a_name_that_is_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with connected("localhost", server.getsockname()[1], 10) as found:
            assert found.getpeername() == server.getsockname()


BAD = ["a..b", "x" * 64, f"a.{'x' * 64}.b", "no-such-host.invalid"]
"""Python encodes the first three as none of DNS's names (UnicodeError)."""


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_name(name: str) -> None:
    for ask in (looked_up, lambda name: connected(name, 80, 10)):
        with pytest.raises(socket.gaierror):
            ask(name)
    with pytest.raises(PortError, match=r"cannot be bound: .* Set MASTER_ADDR to this host's IP"):
        lease([PortNeed("store", "listen", name, 29500)])
    assert not is_here(name)


@pytest.mark.parametrize("name", BAD[:3])
def test_a_plan_refuses_what_is_no_name(name: str) -> None:
    env = {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": name}
    with pytest.raises(PlanError, match=f"host 0 is '{name}'.*1 to 63 letters between two dots"):
        placement([HostFacts(hostname="h", address="198.51.100.7", env=env)])
