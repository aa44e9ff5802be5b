"""A cluster for the tests that need no other one: Ray takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.ray_cluster import RayCluster, cluster_of


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """Two nodes of two processors; they end with the last test."""
    with cluster_of(tmp_path_factory.mktemp("nodes"), {}, {}) as cluster:
        yield cluster
