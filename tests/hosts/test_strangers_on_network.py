"""Another machine of the network, at the ports of a job of two hosts, with a secret and without.

Each program launches twice: what its replicas can send each other, and then with the stranger. To
import torch or JAX costs most of a test; the template of a host does so once for both.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.support.coordinator_stranger import put
from tests.support.gloo_stranger import at_store
from tests.support.namespaces import network
from tests.support.network_job import NetworkJob
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


def check_what_replicas_can_send(said: dict[str, Any], secret: str) -> None:
    """Without a secret plain values alone, and advice for the others."""
    assert len(said["before"]) == 2
    for found in said["before"]:
        if secret:
            assert found == ["Do"] * 4
        else:
            assert "Do cannot be sent" in found[0]
            assert "Set XMP_JOB_SECRET" in found[0]


@pytest.mark.parametrize("secret", SECRETS)
def test_a_stranger_on_another_machine_runs_nothing(
    secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XMP_JOB_SECRET", SECRETS[secret])
    stage = Stage(tmp_path)
    with network(tmp_path, 3) as (*hosts, stranger):
        job = NetworkJob(stage, hosts, before="gathers", function="hears", runtime="jax")
        try:
            job.start()
            job.in_function()
            code = bytes(CODE_SIZE) if SECRETS[secret] else b""
            head = code + pickle.dumps((pickle.dumps(Runs(tmp_path / "ran")), []))
            message = len(head).to_bytes(8, "little") + head
            put(f"{hosts[0].address}:29500", "xmp/0/1/0", message, *stranger.command())
            words = "was not opened" if code else "Malformed"
            assert any(words in error["text"] for error in job.errors())
            for index in range(2):
                check_what_replicas_can_send(job.said(index), SECRETS[secret])
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
        job = NetworkJob(stage, hosts, before="gathers", function="led")
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
            for index in range(2):
                check_what_replicas_can_send(job.said(index), SECRETS[secret])
        finally:
            stage.end()
    assert not (tmp_path / "ran").exists()
