"""A leased port stays bound until its user has bound it, and is free once the lease ends."""

from __future__ import annotations

import socket

import pytest

from xmp._errors import PortError
from xmp._ports import lease
from xmp._types import PortNeed

STORE = PortNeed("store", "listen")
COORDINATOR = PortNeed("coordinator", "hold")


def listener(port: int, *, reuse: bool) -> socket.socket:
    sock = socket.socket()
    if reuse:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind(("127.0.0.1", port))
        sock.listen()
    except OSError:
        sock.close()
        raise
    return sock


def test_a_listening_lease_takes_connections_through_its_descriptor() -> None:
    with lease([STORE]) as held:
        server = socket.socket(fileno=socket.dup(held.descriptors["store"]))
        with server, socket.create_connection(("127.0.0.1", held.ports["store"]), timeout=5) as c:
            peer, address = server.accept()
            with peer:
                assert address == c.getsockname()
                assert server.getsockname()[0] == "127.0.0.1"


def test_a_held_port_is_not_served_and_a_grpc_server_binds_beside_it() -> None:
    with lease([COORDINATOR]) as held:
        port = held.ports["coordinator"]
        assert "coordinator" not in held.descriptors
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        with pytest.raises(OSError, match="in use"):
            listener(port, reuse=False)
        with listener(port, reuse=True) as server:
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                server.accept()[0].close()


def test_a_held_port_cannot_be_shared_by_reuse_address_alone() -> None:
    with lease([COORDINATOR]) as held:
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", held.ports["coordinator"]))


def test_many_leases_at_once_never_repeat_a_number() -> None:
    needs = [PortNeed(f"p{i}", ("listen", "hold")[i % 2]) for i in range(200)]
    with lease(needs) as first, lease(needs) as second:
        assert len({*first.ports.values(), *second.ports.values()}) == 400


def test_closing_gives_the_port_back_and_may_be_repeated() -> None:
    held = lease([STORE])
    held.close()
    held.close()
    listener(held.ports["store"], reuse=False).close()


def test_what_listens_is_handed_over_and_what_is_held_stays() -> None:
    with lease([STORE, COORDINATOR]) as held:
        with socket.socket(fileno=socket.dup(held.descriptors["store"])) as server:
            held.handed_over()
            held.handed_over()
            with socket.create_connection(("127.0.0.1", held.ports["store"]), timeout=5):
                server.accept()[0].close()
        with pytest.raises(ConnectionRefusedError):  # not a connection that no process will accept
            socket.create_connection(("127.0.0.1", held.ports["store"]), timeout=5)
        with pytest.raises(OSError, match="in use"):
            listener(held.ports["coordinator"], reuse=False)


@pytest.mark.parametrize("how", ["hold", "listen"])
@pytest.mark.parametrize("reuse", [True, False])
def test_a_fixed_port_that_is_served_is_refused(how: str, reuse: bool) -> None:
    with listener(0, reuse=reuse) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortError, match=rf"port {port} .*'p'.*served"):
            lease([PortNeed("p", how, port=port)])


def test_a_fixed_port_that_is_free_is_taken_exactly() -> None:
    with lease([STORE]) as held:
        port = held.ports["store"]
    with lease([PortNeed("p", "hold", port=port)]) as again:
        assert again.ports == {"p": port}


def test_one_refusal_holds_nothing() -> None:
    with lease([STORE]) as held:
        taken = held.ports["store"]
    with listener(0, reuse=False) as server:
        wanted = [PortNeed("a", "listen", port=taken), PortNeed("b", "hold", port=port_of(server))]
        with pytest.raises(PortError):
            lease(wanted)
        listener(taken, reuse=False).close()


def port_of(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def test_an_address_of_another_host_is_named() -> None:
    with pytest.raises(PortError, match=r"192\.0\.2\.77.*host list"):
        lease([PortNeed("store", "listen", "192.0.2.77")])


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
def test_ipv6_loopback() -> None:
    try:
        probe = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this kernel has no IPv6 loopback")
    probe.close()
    with lease([PortNeed("store", "listen", "::1")]) as held:
        with socket.create_connection(("::1", held.ports["store"]), timeout=5):
            pass


def test_a_service_that_sets_only_reuseaddr_binds_beside_a_lease_for_it() -> None:
    need = PortNeed("store", "reuse", "127.0.0.1")
    with lease([need]) as held:
        port = held.ports["store"]
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))
        with socket.socket() as service:
            service.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            service.bind(("", port))  # Paddle's store takes all interfaces
            service.listen()
            with socket.create_connection(("127.0.0.1", port), timeout=10):
                pass
