"""What the text of a failure adds to the cause, as tables; no program is started."""

from __future__ import annotations

from typing import Any

import pytest

import xmp
from xmp._os import signals
from xmp._processes.messages.order import MALFORMED, Failure
from xmp._processes.report import host_error, replica_error
from xmp._processes.report.out_of_memory import OomFinding
from xmp._processes.system.processes import CPU_TIME

PEER_GONE = "Connection closed by peer [127.0.0.1]:16816"


def text_of(failure: Failure, results: dict[int, Any] | None = None, ended_by: str = "") -> str:
    return str(
        replica_error.build([failure], 4, "vm", results or {}, {}, OomFinding(), ended_by=ended_by)
    )


@pytest.mark.parametrize(
    ("message", "results", "words"),
    [
        (
            PEER_GONE,
            {0: "x"},
            "\n\nrank 0 had finished. If rank 1 waited for it, the ranks diverged",
        ),
        (PEER_GONE, {0: "x", 2: "y"}, "ranks 0, 2 had finished. If rank 1 waited for one of them"),
        (PEER_GONE, {}, ""),
        ("no such file", {0: "x"}, ""),
    ],
)
def test_ranks_that_had_finished(message: str, results: dict[int, Any], words: str) -> None:
    failure = Failure(1, 1, 7, "raised", error_type="RuntimeError", message=message)
    text = text_of(failure, results)
    assert words in text
    assert ("had finished" in text) == bool(words)


@pytest.mark.parametrize(
    ("failure", "asks"),
    [
        (Failure(1, 1, 7, "signal", signal_name="SIGKILL", why="killed by pid 3"), True),
        (Failure(1, 1, 7, "signal", signal_name="SIGKILL"), False),
        (Failure(1, 1, 7, MALFORMED, signal_name="SIGKILL", why="it has no mark"), False),
        (Failure(1, 1, 7, "signal", signal_name="SIGKILL", why=f"{CPU_TIME} of 1 s"), False),
        (
            Failure(
                1, 1, 7, "signal", signal_name="SIGKILL",
                why=f"kill() {replica_error.CALLED_ON_IT}",
            ),
            False,
        ),
    ],
)  # fmt: skip
def test_memory_may_be_the_reason(failure: Failure, asks: bool) -> None:
    """Of a process that something else has killed."""
    assert replica_error._killed_from_elsewhere(failure) == asks


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (xmp.ReplicaRaised("no"), "ReplicaRaised"),
        (xmp.ReplicaTimeout("no"), "ReplicaTimeout"),
        (xmp.ReplicaDied("no"), "ReplicaDied"),
        (xmp.ReplicaError("no"), "ReplicaDied"),
        (xmp.StartError("no"), "StartError"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_the_kind_that_other_hosts_are_told(error: BaseException, kind: str) -> None:
    assert host_error.described(error, symptom=False).kind == kind


def test_how_long_one_wait_may_take() -> None:
    """Where handlers run at waits alone, each wait ends soon."""
    assert signals.step(None) is None
    assert signals.step(9.0) == 9.0
    with signals.deferred():
        assert signals.step(None) == signals._LOOK_SECONDS
        assert signals.step(9.0) == signals._LOOK_SECONDS
        assert signals.step(0.5) == 0.5


def test_an_error_takes_the_code_of_its_text() -> None:
    """It may come from another process, as text."""
    assert xmp.XmpError("rank 1 ended [XMP-R03]\nmore").code == "XMP-R03"
    assert xmp.XmpError("rank 1 ended").code == xmp.XmpError().code == "XMP-X01"
