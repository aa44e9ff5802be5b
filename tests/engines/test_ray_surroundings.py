"""Which variables of a Ray worker replicas have."""

from __future__ import annotations

from xmp.plugins.ray.surroundings import without_rays

HOST = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "secret", "TPU_OWN": "x", "PATH": "/bin"}
WORKER = {**HOST, "RAY_JOB_ID": "01", "TPU_VISIBLE_CHIPS": "0", "OMP_NUM_THREADS": "1"}


def test_the_token_of_a_cluster_reaches_no_replica() -> None:
    kept = {"RAY_AUTH_MODE": "token", "TPU_OWN": "x", "PATH": "/bin"}
    assert without_rays(WORKER, HOST, {}) == kept


def test_a_token_that_runtime_env_sets_is_the_users() -> None:
    given = {"RAY_AUTH_TOKEN": "mine"}
    assert without_rays({**WORKER, **given}, HOST, given)["RAY_AUTH_TOKEN"] == "mine"
