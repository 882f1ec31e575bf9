"""What tests of strategies need: a cluster, its first worker's strategy, processes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

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


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
    """A process that may fork: elsewhere gRPC now and then aborts the child."""
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        yield fresh
