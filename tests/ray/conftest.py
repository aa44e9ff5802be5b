"""A cluster for the tests that need no other one: Ray takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ray_cluster import RayCluster, cluster_of


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folder in which each node of the cluster was started."""
    return [tmp_path_factory.mktemp(f"host{index}") for index in range(2)]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, hosts: list[Path]) -> Iterator[RayCluster]:
    """Two nodes of two processors; they end with the last test."""
    nodes = [{"cwd": folder, "logs": True} for folder in hosts]
    with cluster_of(tmp_path_factory.mktemp("nodes"), *nodes) as cluster:
        yield cluster
