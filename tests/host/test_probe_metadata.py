"""The metadata server: real HTTP on loopback, with queries that end at their deadline."""

from __future__ import annotations

import http.server
import socket
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from xmp._os import probe
from xmp._os.probe import metadata

ANSWERS = {
    "accelerator-type": "v5litepod-16",
    "agent-worker-number": "1",
    "worker-network-endpoints": "a:1:10.0.0.2,b:2:10.0.0.3",
    "tpu-env": "ACCELERATOR_TYPE: 'v5litepod-16'\nWORKER_ID: '1'",
}


class Server(http.server.ThreadingHTTPServer):
    """Answers like the real one, and records the queries."""

    asked: ClassVar[list[str]] = []
    flavor = "Google"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name = self.path.removeprefix("/computeMetadata/v1/instance/attributes/")
        self.server.asked.append(name)
        wanted = self.headers.get("Metadata-Flavor") == "Google" and name in ANSWERS
        self.send_response(200 if wanted else 404)
        self.send_header("Metadata-Flavor", self.server.flavor)
        self.end_headers()
        self.wfile.write(ANSWERS.get(name, "not found").encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    metadata._asked.cache_clear()
    with Server(("127.0.0.1", 0), Handler) as running:
        running.asked.clear()
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def address(server: Server) -> str:
    return f"127.0.0.1:{server.server_address[1]}"


def chips(root: Path) -> Path:
    folder = root / "sys/bus/pci/devices/0000:00:04.0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vendor").write_text("0x1ae0")
    (folder / "device").write_text("0x0063")
    return root


def test_a_tpu_host_asks_once_per_process(server: Server, tmp_path: Path) -> None:
    env = {"GCE_METADATA_IP": address(server)}
    for _ in range(3):
        assert probe.facts(env=env, root=chips(tmp_path)).metadata == ANSWERS
    assert sorted(server.asked) == sorted(ANSWERS)


def test_a_host_without_chips_asks_no_server(server: Server, tmp_path: Path) -> None:
    env = {"GCE_METADATA_IP": address(server)}
    assert probe.facts(env=env, root=tmp_path).metadata == {}
    assert server.asked == []


@pytest.mark.parametrize("value", ["1", "0", "false", ""])
def test_the_presence_of_the_skip_variable_is_enough(server: Server, value: str) -> None:
    env = {"GCE_METADATA_IP": address(server), "TPU_SKIP_MDS_QUERY": value}
    assert metadata.attributes(env) == {}
    assert server.asked == []


def test_the_word_of_a_jax_that_does_not_know_the_chips_is_not_meant(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its import writes the skip variable into the launcher; a script that set it means it."""
    (chips(tmp_path) / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/environ").write_text("HOME=/root\0")
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    monkeypatch.setenv("GCE_METADATA_IP", address(server))
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    assert probe.facts(root=tmp_path).metadata == {}
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    assert probe.facts(root=tmp_path, loaded=("jax",)).metadata == ANSWERS


def test_attributes_that_do_not_exist_are_left_out(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(ANSWERS, "tpu-env")
    assert "tpu-env" not in metadata.attributes({"GCE_METADATA_IP": address(server)})
    assert len(server.asked) == 4


def test_another_web_server_is_not_believed(server: Server) -> None:
    server.flavor = "captive portal"
    assert metadata.attributes({"GCE_METADATA_IP": address(server)}) == {}


def test_no_server_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata._asked.cache_clear()
    monkeypatch.setattr(metadata, "DEADLINE", 600.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        env = {"GCE_METADATA_IP": f"127.0.0.1:{free.getsockname()[1]}"}
        assert metadata.attributes(env) == {}


def test_a_server_that_never_finishes_is_left_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that sends one byte now and then never exceeds a time-out for one read."""
    metadata._asked.cache_clear()
    monkeypatch.setattr(metadata, "DEADLINE", 0.5)
    enough = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            while not enough.wait(0.05):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        env = {"GCE_METADATA_IP": f"127.0.0.1:{listener.getsockname()[1]}"}
        assert metadata.attributes(env) == {}
        enough.set()
        thread.join()
