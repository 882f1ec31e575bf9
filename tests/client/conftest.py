"""What tests of strategies need: a cluster, and its first worker's strategy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratagem import ParameterServerStrategy
from tests.client.clusters import Cluster, running


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two servers in this process, for two workers."""
    with running(num_servers=2, num_workers=2) as cluster:
        yield cluster


@pytest.fixture
def strategy(cluster: Cluster) -> Iterator[ParameterServerStrategy]:
    """The first worker's strategy, with the usual settings."""
    with cluster.strategy() as strategy:
        yield strategy
