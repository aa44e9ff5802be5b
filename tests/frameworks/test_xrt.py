"""Legacy torch_xla in real replicas: a stand-in with its interface, which records the calls.

torch_xla up to 2.0 can no longer be installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

XLA_MODEL = '''
"""The functions of torch_xla 1.6's xla_model that its spawn and our collectives call."""
import os, pickle, socket, time
import torch

CALLS = []
SERVICE = []


def xrt_world_size(defval=1):
    CALLS.append(["xrt_world_size"])
    return int(os.environ.get("XRT_SHARD_WORLD_SIZE", defval))


def xla_device(n=None, devkind=None):
    CALLS.append(["xla_device", os.environ["XRT_MULTI_PROCESSING_DEVICE"]])
    return torch.device("cpu")


def set_replication(device, devices):
    CALLS.append(["set_replication", device, devices])


def rendezvous(tag, payload=b"", replicas=[]):
    """By the mesh service, which the replica of ordinal 0 is at the planned address."""
    CALLS.append(["rendezvous", tag])
    ordinal = int(os.environ["XRT_SHARD_ORDINAL"])
    host, _, port = os.environ["XRT_MESH_SERVICE_ADDRESS"].rpartition(":")
    if ordinal == 0:
        return serve((host, int(port)), tag, payload)
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=30) as sock:
                file = sock.makefile("rwb")
                pickle.dump((ordinal, tag, payload), file)
                file.flush()
                return pickle.load(file)
        except ConnectionRefusedError:
            time.sleep(0.01)


def serve(address, tag, payload):
    if not SERVICE:
        SERVICE.append(socket.socket())
        SERVICE[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as gRPC does
        SERVICE[0].bind(address)
        SERVICE[0].listen()
    brought, files = {0: payload}, []
    while len(brought) < xrt_world_size():
        sock = SERVICE[0].accept()[0]
        files.append(sock.makefile("rwb"))
        ordinal, theirs, brought_payload = pickle.load(files[-1])
        assert theirs == tag
        brought[ordinal] = brought_payload
        sock.close()
    found = [brought[ordinal] for ordinal in sorted(brought)]
    for file in files:
        pickle.dump(found, file)
        file.close()
    return found


def all_reduce(reduce_type, inputs, scale=1.0, groups=[]):
    CALLS.append(["all_reduce", reduce_type])
    for each in inputs:  # all bring the same here
        each.mul_(xrt_world_size())
'''

PROGRAM = """
import json, os, sys
import xmp

def seen(rank):
    import torch_xla.core.xla_model as xm
    names = ("XRT_SHARD_ORDINAL", "XRT_SHARD_WORLD_SIZE", "XRT_LOCAL_WORKER", "XRT_TPU_CONFIG")
    calls = list(xm.CALLS)
    xmp.barrier()
    after = xm.CALLS[len(calls):]
    if xmp.world_size() > 1:
        after += together(rank)
    return [rank, calls, [os.environ.get(n) for n in names], after, str(xmp.device())]

def together(rank):
    import torch

    own = torch.arange(2.0) + rank
    long = "x" * 9000 * rank
    return [
        xmp.all_reduce({"t": torch.ones(2), "n": rank}, "mean")["n"],
        [[r, t.tolist(), len(text)] for r, t, text in xmp.all_gather((rank, own, long))],
        xmp.all_reduce(torch.ones(2)).tolist(),
        [[r, t.tolist()] for r, t in (xmp.broadcast((rank, own), src) for src in (0, 1))],
    ]

def raises(rank):
    if rank == 1:
        raise ValueError("the second one\\nhas two lines")
    import signal
    while True:
        signal.pause()

def leaves(rank):
    raise SystemExit(3)

if __name__ == "__main__":
    for what, nprocs in (("seen", 2), ("seen", 1), ("raises", 2), ("leaves", 1)):
        context = xmp.spawn(globals()[what], nprocs=nprocs, join=False)
        try:
            print(json.dumps(["", *context.results()]))
        except xmp.ReplicaError as error:
            cause = error.__cause__
            codes = [process.exitcode for process in context.processes]
            print(json.dumps([type(error).__name__, error.rank, repr(cause), codes]))
        print("-- next", file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def old_torch_xla(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in and the metadata of a torch_xla 1.6."""
    folder = tmp_path_factory.mktemp("installed")
    package = folder / "torch_xla" / "core"
    package.mkdir(parents=True)
    for each in (package, package.parent):
        (each / "__init__.py").write_text("")
    (package / "xla_model.py").write_text(XLA_MODEL)
    about = folder / "torch_xla-1.6.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_xla\nVersion: 1.6\n")
    return folder


@pytest.fixture(scope="module")
def launched(old_torch_xla: Path) -> dict[str, tuple[Any, str]]:
    """What the program prints of each launch, and its standard error meanwhile."""
    program = old_torch_xla / "program.py"
    program.write_text(PROGRAM)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(old_torch_xla), str(ROOT))),
        "XRT_TPU_CONFIG": "tpu_worker;0;127.0.0.1:8470",
        "TPU_NUM_DEVICES": "2",
    }
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=env,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    out = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    names = ("two", "alone", "raises", "leaves")
    return dict(zip(names, zip(out, done.stderr.split("-- next\n"), strict=False), strict=True))


def test_device_and_then_replication(launched: dict[str, tuple[Any, str]]) -> None:
    (_, *replicas), _ = launched["two"]
    config = "tpu_worker;0;127.0.0.1:8470"
    for rank, (given, calls, environment, after, device) in enumerate(replicas):
        assert given == rank
        assert calls == [
            ["xrt_world_size"],
            ["xla_device", f"TPU:{rank}"],
            ["set_replication", "cpu", ["cpu"]],
        ]
        assert environment == [str(rank), "2", "tpu_worker:0", config if rank == 0 else None]
        assert after[0][0] == "rendezvous"
        assert after[-4:] == [
            0.5,
            [[0, [0.0, 1.0], 0], [1, [1.0, 2.0], 9000]],
            [2.0, 2.0],
            [[0, [0.0, 1.0]], [1, [1.0, 2.0]]],
        ]
        assert device == "cpu"


def test_alone_there_is_no_replication(launched: dict[str, tuple[Any, str]]) -> None:
    (_, replica), _ = launched["alone"]
    assert replica[1] == [["xrt_world_size"]]


def test_an_exception_is_two_messages_and_exit_code_17(
    launched: dict[str, tuple[Any, str]],
) -> None:
    (kind, rank, cause, codes), err = launched["raises"]
    assert (kind, rank) == ("ReplicaRaised", 1)
    assert cause == repr(ValueError("the second one\nhas two lines"))
    assert codes[1] == 17
    first, _, rest = err.partition("Exception in device=TPU:1: the second one\nhas two lines\n")
    assert "Exception in device" not in first
    assert rest.startswith("Traceback (most recent call last):\n")
    assert 'raise ValueError("the second one\\nhas two lines")' in rest
    assert "Exception in device=TPU:0" not in err


def test_leaving_is_no_exception(launched: dict[str, tuple[Any, str]]) -> None:
    (kind, _, _, codes), err = launched["leaves"]
    assert kind == "ReplicaDied"
    assert codes == [3]
    assert "Exception in device" not in err
