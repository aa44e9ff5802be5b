"""Files of a launch: for its user alone, there while replicas run, and gone at the end."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import xmp
from xmp._os import planned_files
from xmp._plan import planner, runtimes
from xmp._words.types import HostFacts, HostPlan, JobPlan, ReplicaPlan, Request

TEXT = "10.0.0.1:8476," * 10_000


class Wide(runtimes.Runtime):
    """A runtime whose replicas have a value that is too long for a variable."""

    name = "wide"
    owned = ("WIDE", "WIDE_PATH")

    def fit(self, facts: HostFacts, request: Request, hosts: int) -> runtimes.Fit:
        return runtimes.Fit(2, None, "any number")

    def share(self, job: runtimes.Job, place: runtimes.Place, local: int) -> runtimes.Share:
        return runtimes.Share({"WIDE": TEXT})

    def from_files(self, facts: HostFacts) -> dict[str, str]:
        return {"WIDE": "WIDE_PATH"}


def planned(text: str) -> JobPlan:
    replica = ReplicaPlan(0, 0, 0, set=(("A", "1"),), unset=("WIDE", "WIDE_PATH"))
    return JobPlan("", "", 1, (HostPlan(0, "", (replica,), (("WIDE_PATH", text),)),))


def test_only_the_user_may_read_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    ends: list[Callable[[], None]] = []
    before = os.umask(0)
    try:
        made = planned_files.write(planned(TEXT), ends.append)
    finally:
        os.umask(before)
    (replica,) = made.hosts[0].replicas
    path = Path(dict(replica.set)["WIDE_PATH"])
    assert path.read_text() == TEXT
    assert path.parent.parent == tmp_path
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert replica.unset == ("WIDE",)
    assert made.hosts[0].files == ()  # the order need not carry the text
    (end,) = ends
    end()
    assert not [*tmp_path.iterdir()]


def test_each_replica_has_a_folder_for_its_error_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    two = tuple(ReplicaPlan(n + 2, n, n, unset=("TORCHELASTIC_ERROR_FILE",)) for n in range(2))
    plan = JobPlan("", "", 4, (HostPlan(1, "", two),))
    ends: list[Callable[[], None]] = []
    made = planned_files.with_error_files(plan, ends.append).hosts[0].replicas
    paths = [Path(dict(each.set)["TORCHELASTIC_ERROR_FILE"]) for each in made]
    assert [path.parts[-2:] for path in paths] == [("0", "error.json"), ("1", "error.json")]
    assert [path.exists() for path in paths] == [False, False], "its presence says that it failed"
    assert [each.unset for each in made] == [(), ()]
    paths[0].write_text("x")
    ends.pop()()
    assert not [*tmp_path.iterdir()]


def test_no_room_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(xmp.StartError, match=r"file for WIDE_PATH cannot be written.*TMPDIR"):
        planned_files.write(planned(TEXT), lambda _: None)


def _read(rank: int) -> tuple[str, bool, int]:
    path = os.environ["WIDE_PATH"]
    return path, "WIDE" in os.environ, len(Path(path).read_text())


def _fails(rank: int) -> None:
    raise ValueError(os.environ["WIDE_PATH"])


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.methods)])
def test_replicas_read_it_and_it_ends_with_the_launch(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIDE_PATH", "/of/another/launch")
    runtimes.register(Wide())
    try:
        found = xmp.spawn(_read, nprocs=2, runtime="wide", start_method=method)  # type: ignore[call-overload]
        with pytest.raises(xmp.ReplicaRaised) as failed:
            xmp.spawn(_fails, nprocs=2, runtime="wide", start_method=method)  # type: ignore[call-overload]
    finally:
        runtimes.unregister("wide")
    path = found[0][0]
    assert [*found] == [(path, False, len(TEXT))] * 2
    for each in (path, str(failed.value.__cause__)):
        assert each.endswith("/WIDE_PATH")
        assert not Path(each).parent.exists()


def test_the_plan_alone_writes_nothing() -> None:
    runtimes.register(Wide())
    try:
        made = planner.plan(Request(runtime="wide"), HostFacts())
    finally:
        runtimes.unregister("wide")
    assert made.hosts[0].files == (("WIDE_PATH", TEXT),)
    assert "WIDE_PATH" not in dict(made.hosts[0].replicas[0].set)
