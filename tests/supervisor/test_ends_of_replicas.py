"""How a replica has ended, as a table: what it had reported and its status in, the failure out."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from xmp._processes.messages.order import HUNG_UP, MALFORMED
from xmp._processes.supervisor.replica_handle import ReplicaHandle
from xmp._words.types import ReplicaPlan


def ended(status: int, hung_up: bool = False, malformed: bool = False) -> dict[str, Any] | None:
    unused: Any = None
    replica = ReplicaHandle(ReplicaPlan(0, 0, 0), unused, [], unused)
    replica.hung_up = hung_up
    if malformed:
        replica.fail(kind=MALFORMED, at=1, why="its kind is 200")
    replica.note_end(5, status, "")
    failure = replica.failure
    if failure is None:
        return None
    return {
        "kind": failure.kind, "code": failure.exit_code, "signal": failure.signal_name,
        "hung_up": failure.hung_up,
    }  # fmt: skip


def exited(code: int) -> int:
    return code << 8


@pytest.mark.parametrize(
    ("how", "failure"),
    [
        ({"status": exited(0)}, None),
        ({"status": exited(3)},
         {"kind": "exit", "code": 3, "signal": None, "hung_up": False}),
        ({"status": exited(3), "hung_up": True},
         {"kind": "exit", "code": 3, "signal": None, "hung_up": True}),
        ({"status": exited(HUNG_UP)},
         {"kind": "exit", "code": HUNG_UP, "signal": None, "hung_up": True}),
        ({"status": signal.SIGSEGV},
         {"kind": "signal", "code": -signal.SIGSEGV, "signal": "SIGSEGV", "hung_up": False}),
        ({"status": signal.SIGKILL, "malformed": True},
         {"kind": MALFORMED, "code": -signal.SIGKILL, "signal": "SIGKILL", "hung_up": False}),
    ],
)  # fmt: skip
def test_how_it_has_ended(how: dict[str, Any], failure: dict[str, Any] | None) -> None:
    assert ended(**how) == failure
