"""Worker processes that join and leave while a program coordinates them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from stratagem import ClusterSpec, ParameterServerStrategy
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem.coordinator import experimental_get_current_worker_index
from stratagem_deploy import LocalCluster
from tests.cluster.preemption import Training, process_of
from tests.waiting import eventually

pytestmark = pytest.mark.cluster


class Directory(SimpleClusterResolver):
    """What a local cluster has now."""

    def __init__(self, cluster: LocalCluster) -> None:
        first = cluster.cluster_resolver
        super().__init__(first.cluster_spec(), task_type="chief", task_id=0)
        self.cluster_token = first.cluster_token
        self._cluster = cluster

    def cluster_spec(self) -> ClusterSpec:
        return self._cluster.cluster_resolver.cluster_spec()


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(ps=1, worker_servers=1, processes=True) as running:
        yield running


def where() -> int:
    return experimental_get_current_worker_index()


def test_workers_come_and_go_while_functions_run(cluster: LocalCluster) -> None:
    with ParameterServerStrategy(cluster.cluster_resolver) as strategy:
        training = Training(strategy)
        coordinator = training.coordinator
        values = training.run_endlessly(6, workers=1)
        assert coordinator.add_worker(cluster.add_worker_server()) == 1
        eventually(lambda: training.begun == 2)
        first, second = (process_of("worker", index) for index in range(2))
        os.kill(first, signal.SIGKILL)
        eventually(lambda: coordinator.workers == [1], seconds=2)
        training.join()
        assert training.ended == training.begun == 6
        assert set(coordinator.fetch(values)) == {second}
        cluster.restart("worker", 0)
        eventually(lambda: coordinator.workers == [0, 1])
        coordinator.remove_worker(1)
        assert coordinator.schedule(where).fetch() == 0


def test_workers_join_as_a_resolver_finds_them(cluster: LocalCluster) -> None:
    with ParameterServerStrategy(Directory(cluster)) as strategy:
        training = Training(strategy, resolver_seconds=0.1)
        training.run_endlessly(6, workers=1)
        cluster.add_worker_server()
        eventually(lambda: training.begun == 2)
        training.join()
        assert training.ended == training.begun == 6
