"""A leased port stays bound until its user has bound it, and is free once the lease ends."""

from __future__ import annotations

import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support.waiting import until
from xmp._os import ports, signals
from xmp._os.ports import lease
from xmp._words.errors import PortError
from xmp._words.types import PortNeed

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
    with pytest.raises(PortError, match=r"192\.0\.2\.77.*does not have that address\."):
        lease([PortNeed("store", "listen", "192.0.2.77")])


def test_the_address_of_a_host_whose_port_is_served_is_named_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As where the host that has the address serves the port: a launch's real host 0.
    monkeypatch.setattr(ports, "_is_served", lambda need, family: True)
    need = PortNeed("store", "listen", "192.0.2.77", 29500, moved_by="MASTER_PORT")
    with pytest.raises(PortError) as refused:
        lease([need])
    assert "port 29500 at 192.0.2.77" in str(refused.value)
    assert "Is this another host, with a wrong index (NODE_RANK)?" in str(refused.value)
    assert "end that program" not in str(refused.value)


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


# --- a fixed port whose last user has just ended -------------------------------------------------

OPTIONS = {
    "none": (),
    "address": (socket.SO_REUSEADDR,),
    "port": (socket.SO_REUSEPORT,),
    "both": (socket.SO_REUSEADDR, socket.SO_REUSEPORT),
}


def ended_server(options: tuple[int, ...], *, client_ends: bool) -> tuple[int, socket.socket]:
    """A server that has ended after it closed a connection, and its client."""
    with socket.socket() as server:
        for option in options:
            server.setsockopt(socket.SOL_SOCKET, option, 1)
        server.bind(("127.0.0.2", 0))
        server.listen()
        port = port_of(server)
        client = socket.create_connection(("127.0.0.2", port))
        server.accept()[0].close()
    assert client.recv(1) == b""
    if client_ends:
        client.close()  # the server's side is in TIME_WAIT now, for a minute
    return port, client


@pytest.mark.parametrize(("before", "how"), [
    ("address", "listen"), ("address", "hold"), ("address", "reuse"),
    ("port", "hold"), ("both", "listen"), ("both", "hold"), ("both", "reuse"),
])  # fmt: skip
def test_a_port_is_held_again_at_once(
    before: str, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """As after a launch of xmp's with torch (address), JAX or libtpu (both)."""
    port, _ = ended_server(OPTIONS[before], client_ends=True)
    with lease([PortNeed("p", how, "127.0.0.2", port)]) as held:
        assert held.ports == {"p": port}
        if how == "hold":  # not by a program of another user, which SO_REUSEADDR would allow
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with pytest.raises(OSError, match="in use"):
                    other.bind(("127.0.0.2", port))
    assert capfd.readouterr().err == ""


@pytest.fixture
def waited(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[[str, str], None]]:
    """Waits for a port that only the end of its last connection frees."""

    def wait(before: str, how: str) -> None:
        port, client = ended_server(OPTIONS[before], client_ends=False)
        said: list[str] = []

        def end_the_connection() -> None:
            def warned() -> bool:
                said.append(capfd.readouterr().err)
                return "has just ended" in said[-1]

            until(warned, 10)
            # A reset ends the server's half, which is in FIN_WAIT2, for good.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()

        thread = threading.Thread(target=end_the_connection)
        thread.start()
        try:
            with lease([PortNeed("p", how, "127.0.0.2", port)]) as held:
                assert held.ports == {"p": port}
        finally:
            thread.join()
        assert "".join(said).count(f"port {port} at 127.0.0.2: the program that used it") == 1

    return wait


@pytest.mark.parametrize(
    ("before", "how"), [("none", "listen"), ("none", "hold"), ("port", "reuse")]
)
def test_it_is_held_when_the_kernel_frees_it(
    before: str, how: str, waited: Callable[[str, str], None]
) -> None:
    waited(before, how)


def test_a_signal_handler_ends_the_wait() -> None:
    port, client = ended_server((), client_ends=False)

    def late(*_: object) -> None:
        raise TimeoutError("late")

    before = signal.signal(signal.SIGALRM, late)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(TimeoutError, match="late"), signals.deferred():
            lease([PortNeed("p", "listen", "127.0.0.2", port)])
    finally:
        signal.signal(signal.SIGALRM, before)
        client.close()


@pytest.mark.parametrize("how", ["listen", "hold"])
def test_a_port_that_is_bound_is_not_waited_for(
    how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.2", 0))
        with pytest.raises(PortError, match="Another program uses it"):
            lease([PortNeed("p", how, "127.0.0.2", port_of(other))])
    assert "waiting until the kernel frees it" not in capfd.readouterr().err


def test_the_probe_is_no_server_and_leaves_nothing() -> None:
    """A connection to a free port may get that port as its own and meet itself."""
    with lease([STORE]) as held:
        port = held.ports["store"] // 2 * 2  # the kernel prefers even numbers for clients
    need = PortNeed("p", "listen", port=port)
    met = 0
    real = socket.socket.getpeername

    class Watched(socket.socket):
        def getpeername(self) -> object:
            nonlocal met
            met += 1
            return real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ports.socket, "socket", Watched)
        for _ in range(200_000):
            ports._refuse_served(need, socket.AF_INET)
            if met:
                break
    assert met
    assert not ports._left_by_an_ended_program(port)


def test_a_name_that_is_loopback_here_is_refused() -> None:
    """As Debian's 127.0.1.1 beside the host's own name; this number stands for 127.0.1.1."""
    with pytest.raises(
        PortError, match=r"'2130706689'.*here that name is 127\.0\.1\.1.*MASTER_ADDR"
    ):
        lease([PortNeed("store", "listen", "2130706689", 29500)])
    with lease([PortNeed("store", "listen", "localhost")]) as held:
        port = held.ports["store"]
    with lease([PortNeed("store", "listen", "localhost", port)]):
        pass


@pytest.mark.parametrize("how", ["listen", "hold", "reuse"])
def test_any_lease_binds_beside_a_reserved_port(how: str) -> None:
    with lease([PortNeed("master", "reserve")]) as reserved:
        port = reserved.ports["master"]
        for _ in range(2):
            with lease([PortNeed("of a launch", how, port=port)]) as held:
                assert held.ports == {"of a launch": port}
        with pytest.raises(OSError):
            listener(port, reuse=False)
