"""Another machine of the network, at the ports of a job of two hosts, with a secret and without."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.support.coordinator_stranger import put
from tests.support.gloo_stranger import at_store
from tests.support.namespaces import network
from tests.support.network_job import NetworkJob, job_on_network
from tests.support.stage import Stage
from xmp._inside.frameworks._seal import CODE_SIZE

pytestmark = [pytest.mark.hosts, pytest.mark.netns, pytest.mark.root]

SECRETS = {"secret": "of this job, which no stranger knows", "none": ""}


class Runs:
    """A pickle that runs code when it is opened."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return os.mkdir, (self._file,)


@pytest.mark.parametrize("secret", SECRETS)
def test_a_stranger_on_another_machine_runs_nothing(
    secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XMP_JOB_SECRET", SECRETS[secret])
    stage = Stage(tmp_path)
    with network(tmp_path, 3) as (*hosts, stranger):
        job = NetworkJob(stage, hosts, function="hears", runtime="jax")
        try:
            job.start()
            job.in_function()
            code = bytes(CODE_SIZE) if SECRETS[secret] else b""
            head = code + pickle.dumps((pickle.dumps(Runs(tmp_path / "ran")), []))
            message = len(head).to_bytes(8, "little") + head
            put(f"{hosts[0].address}:29500", "xmp/1/0", message, *stranger.command())
            words = "was not opened" if code else "Malformed"
            assert any(words in error["text"] for error in job.errors())
        finally:
            stage.end()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("secret", SECRETS)
def test_a_stranger_between_the_replicas_of_two_hosts_runs_nothing(
    secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a third machine, which torch's store has led their connections to."""
    monkeypatch.setenv("XMP_JOB_SECRET", SECRETS[secret])
    stage = Stage(tmp_path)
    with network(tmp_path, 3) as (third, *hosts):
        job = NetworkJob(stage, hosts, function="led")
        try:
            job.start()
            job.reached("arrived")
            store = "torch", f"{hosts[0].address}:29500", 4, third.address, str(tmp_path / "ran")
            with at_store(*store, *third.command()) as stranger:
                job.reached("joined")
                stranger.go_on()
                (tmp_path / "go").touch()
                words = "was not opened" if SECRETS[secret] else "Malformed"
                assert any(words in error["text"] for error in job.errors())
                assert stranger.has_forged()
        finally:
            stage.end()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("runtime", ["cpu", "jax"])
@pytest.mark.parametrize("secret", SECRETS)
def test_what_replicas_of_two_hosts_can_send_each_other(
    secret: str, runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a secret plain values alone, and advice for the others."""
    monkeypatch.setenv("XMP_JOB_SECRET", SECRETS[secret])
    with job_on_network(tmp_path, function="gathers", runtime=runtime) as job:
        job.start()
        for found in (each for index in range(2) for each in job.said(index)["results"]):
            if SECRETS[secret]:
                assert found == ["Do"] * 4
            else:
                assert "Do cannot be sent" in found[0]
                assert "Set XMP_JOB_SECRET" in found[0]
