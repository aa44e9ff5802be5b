"""Which variables and folders of a Ray worker replicas have."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from xmp.plugins.ray.surroundings import is_rays, without_rays

HOST = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "secret", "TPU_OWN": "x", "PATH": "/bin"}
WORKER = {**HOST, "RAY_JOB_ID": "01", "TPU_VISIBLE_CHIPS": "0", "OMP_NUM_THREADS": "1"}


def test_the_token_of_a_cluster_reaches_no_replica() -> None:
    kept = {"RAY_AUTH_MODE": "token", "TPU_OWN": "x", "PATH": "/bin"}
    assert without_rays(WORKER, HOST, {}) == kept


def test_a_token_that_runtime_env_sets_is_the_users() -> None:
    given = {"RAY_AUTH_TOKEN": "mine"}
    assert without_rays({**WORKER, **given}, HOST, given)["RAY_AUTH_TOKEN"] == "mine"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("venv/ray/_private/workers", True),
        ("real/ray/_private/workers", True),  # as Python writes it into sys.path
        ("venv/rayon", False),
        ("", False),
    ],
)
def test_rays_own_folder_is_known_by_each_of_its_names(
    path: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment may be reached by a link."""
    (tmp_path / "real/ray/_private/workers").mkdir(parents=True)
    (tmp_path / "venv").symlink_to("real")
    ray = SimpleNamespace(__file__=str(tmp_path / "venv/ray/__init__.py"))
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert is_rays(str(tmp_path / path)) is expected
