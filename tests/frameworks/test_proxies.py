"""A proxy for the outside world: our own addresses do not go through it."""

from __future__ import annotations

import socket

import pytest

import xmp
from tests.support.frameworks import replicas


def meet(rank: int) -> int:
    xmp.init_process_group()
    return int(xmp.all_reduce(rank + 1))


@pytest.mark.parametrize("runtime", ["jax", "cpu"])
def test_replicas_meet_beside_a_proxy(
    runtime: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, address)
        assert replicas(meet, runtime=runtime, nprocs=2) == [3, 3]
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):  # no client has called
            proxy.accept()
    assert "proxy" not in capfd.readouterr().err, "JAX need not warn of it"
