"""What a failed launch still gives: results, failures, and a table of both."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from pathlib import Path

import pytest

import xmp
from tests.support.launching import failure, never_returns
from tests.support.stage import Python
from tests.support.waiting import until

pytestmark = [pytest.mark.first_pass, pytest.mark.failing]


def half(rank: int, folder: str) -> str | None:
    if rank == 2:
        until(lambda: len(os.listdir(folder)) == 2)
        until(lambda: not any(link.exists() for link in Path(folder).iterdir()))  # ended
        raise ValueError("<b>no & label</b>")
    if rank == 3:
        never_returns()
    pid = Path(folder, f"{rank}")
    pid.symlink_to(f"/proc/{os.getpid()}")
    return "done" if rank else None


def partly(method: str, folder: Path) -> xmp.ReplicaError:
    return failure(method, half, str(folder), nprocs=4)


def test_results_and_failures_are_on_the_error(method: str, tmp_path: Path) -> None:
    error = partly(method, tmp_path)
    assert dict(error.results) == {0: None, 1: "done"}
    assert [(each.rank, each.label) for each in error.failures] == [
        (2, "cause"), (3, "stopped by xmp"),
    ]  # fmt: skip
    assert error.failures[1].signal_name == signal.SIGTERM.name


def test_the_table_has_every_rank_and_no_markup_of_the_users(tmp_path: Path) -> None:
    error = partly("forkserver", tmp_path)
    html = error._repr_html_()
    assert "<td>0</td><td>finished</td><td>returned</td><td></td>" in html
    assert "<td>1</td><td>finished</td><td>returned str</td><td></td>" in html
    cause = "raised ValueError: &lt;b&gt;no &amp; label&lt;/b&gt;"
    assert f"<th>2</th><th>cause</th><th>{cause}</th><th></th>" in html
    assert "<td>3</td><td>stopped by xmp</td><td>was killed by SIGTERM</td><td>+0." in html
    assert "<b>" not in html
    assert html.startswith("<table><caption>rank 2 of 4 (cpu, pid ")


def test_a_time_limit_has_a_table_too() -> None:
    def fn(rank: int) -> None:
        if rank == 1:
            never_returns()

    error = failure("forkserver", fn, timeout=4)
    html = error._repr_html_()
    assert "<td>0</td><td>finished</td>" in html
    assert "<td>1</td><td>stopped by xmp</td>" in html


def test_an_error_with_a_table_still_pickles(tmp_path: Path) -> None:
    error = partly("forkserver", tmp_path)
    again = pickle.loads(pickle.dumps(error))
    assert again._repr_html_() == error._repr_html_()


KERNEL = """
import json, sys
from jupyter_client.manager import KernelManager

manager = KernelManager(transport="ipc", ip="k")
manager.start_kernel()
client = manager.client()
client.start_channels()
got = []
try:
    client.wait_for_ready(timeout=30)
    for code in json.loads(sys.stdin.read()):
        def take(message):
            got.append([message["msg_type"], message["content"]])
        client.execute_interactive(code, timeout=30, output_hook=take, allow_stdin=False)
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=False)
print(json.dumps([each for each in got if each[0] in ("display_data", "error", "execute_result")]))
"""
CELLS = [
    "import xmp",
    "def fn(rank):\n    if rank == 1:\n        raise ValueError('no <label>')\n    return {}",
    "xmp.spawn(fn, nprocs=2, runtime='cpu')",
    "try:\n    xmp.spawn(fn, nprocs=2, runtime='cpu')\nexcept xmp.ReplicaError as e: error = e",
    "error",
]


def test_a_notebook_shows_the_table_and_the_users_frames(
    python: Python, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    (tmp_path / "kernel.py").write_text(KERNEL)
    done = python("kernel.py", stdin=json.dumps(CELLS), cwd=tmp_path, timeout=40)
    (shown, table), (kind, raised), (last, value) = done.json()
    assert (shown, kind, last) == ("display_data", "error", "execute_result")
    assert "<th>raised ValueError: no &lt;label&gt;</th>" in table["data"]["text/html"]
    assert raised["ename"] == "ReplicaRaised"
    assert raised["evalue"].startswith("rank 1 of 2 (cpu, pid ")
    lines = "\n".join(raised["traceback"])
    assert "nprocs" in lines, "the user's call"
    assert "\n    raise ValueError('no <label>')\n" in lines, (
        "the line of a cell that replicas lack"
    )
    assert "_calls/spawn.py" not in lines
    assert "_replica" not in lines
    assert value["data"]["text/html"].startswith("<table>")
