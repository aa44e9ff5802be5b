"""What torch's ``@record`` has written, as a table: torch's form, handlers of programs, no file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from xmp._processes.messages.order import Failure
from xmp._processes.supervisor.replica_handle import recorded
from xmp._words.types import ReplicaPlan

NOTHING = "", ""
OF_TORCH = {
    "message": "ValueError: no such label",
    "extraInfo": {"py_callstack": "Traceback …", "timestamp": "1"},
}


def read(path: Path) -> tuple[str, str]:
    return recorded(ReplicaPlan(0, 0, 0, set=(("TORCHELASTIC_ERROR_FILE", str(path)),)))


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ({"message": OF_TORCH}, ("ValueError: no such label", "Traceback …")),
        ({"message": "out of disk", "timestamp": 1}, ("out of disk", "")),
        ({"message": {"message": "out of disk"}}, ("out of disk", "")),
        ({"message": {"extraInfo": {"py_callstack": "Traceback …"}}}, ("", "Traceback …")),
        ({"message": {"message": 3, "extraInfo": ["x"]}}, NOTHING),
        ({"messages": "x"}, NOTHING),
        (["x"], NOTHING),
        ("{", NOTHING),
        ("", NOTHING),
        ("[" * 60_000, NOTHING),
        (" " * 70_000 + '{"message": "x"}', NOTHING),
    ],
    ids=lambda value: str(value)[:30],
)
def test_forms(tmp_path: Path, written: object, found: tuple[str, str]) -> None:
    path = tmp_path / "error.json"
    path.write_text(written if isinstance(written, str) else json.dumps(written))
    assert read(path) == found


def test_what_is_no_file_of_the_replica_is_not_read(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text('{"message": "of another file"}')
    (tmp_path / "link").symlink_to(other)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "none", "."):
        assert read(tmp_path / name) == NOTHING
    assert recorded(ReplicaPlan(0, 0, 0)) == NOTHING


@pytest.mark.parametrize(
    ("kind", "known", "what"),
    [
        ("exit", {"exit_code": 3}, "recorded ValueError: a, then ended with exit code 3"),
        ("exit", {"message": "sys.exit(1)"}, "recorded ValueError: a, then called sys.exit(1)"),
        ("signal", {"signal_name": "SIGBUS"}, "recorded ValueError: a, then was killed by SIGBUS"),
        ("raised", {"error_type": "ValueError", "message": "a\nb"}, "raised ValueError: a"),
        ("raised", {"error_type": "OSError"}, "recorded ValueError: a, then raised OSError"),
    ],
)  # fmt: skip
def test_in_one_line(kind: str, known: dict[str, object], what: str) -> None:
    more: Any = known
    failure = Failure(0, 0, 1, kind, recorded=("ValueError: a\nb", ""), **more)
    assert failure.what == what
