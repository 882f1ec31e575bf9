"""Clusters whose servers and workers serve in this process, and their coordinator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from stratagem import ClusterSpec, ParameterServerStrategy
from stratagem.cluster_resolver import ClusterResolver, SimpleClusterResolver
from stratagem.coordinator import ClusterCoordinator
from stratagem_deploy.processes.resources import ReservedAddresses
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings
from tests.conftest import TOKEN

NewResolver = Callable[[ClusterSpec], ClusterResolver]


def new_resolver(cluster: ClusterSpec) -> ClusterResolver:
    """What the program sees of a cluster."""
    return SimpleClusterResolver(cluster, task_type="chief", task_id=0)


class Coordination:
    """A program that coordinates workers.

    Args:
        num_servers: How many parameter servers there are.
        num_workers: How many workers there are.
        importable_only: Modules whose functions workers run, and no others; none for any.

    Attributes:
        servers: The parameter servers.
        strategy: Its strategy.
        coordinator: Its coordinator.
    """

    strategy: ParameterServerStrategy
    coordinator: ClusterCoordinator

    def __init__(
        self, num_servers: int, num_workers: int, importable_only: Sequence[str] = ()
    ) -> None:
        self._servers, self._places = ReservedAddresses(num_servers), ReservedAddresses(num_workers)
        servers, workers = self._servers.replicas, self._places.replicas
        self.servers = [*map(_server, range(num_servers), servers)]
        self._workers = {
            index: _worker(index, address, importable_only) for index, address in enumerate(workers)
        }
        self.cluster = ClusterSpec({"ps": servers, "worker": workers, "chief": ["chief.test:1"]})

    def new_strategy(
        self, resolver: NewResolver = new_resolver, **settings: Any
    ) -> ParameterServerStrategy:
        """A strategy of the program; close it at the end."""
        settings = {"token": TOKEN, "peer_seconds": 60, **settings}
        return ParameterServerStrategy(resolver(self.cluster), **settings)

    def stop(self, worker: int) -> None:
        """Ends a worker, which gets no time to finish anything."""
        self._workers.pop(worker).stop(grace=0)

    def stop_server(self, server: int) -> None:
        """Ends a parameter server, for good."""
        self.servers[server].stop(grace=0)

    def restart_server(self, server: int) -> None:
        """Ends a parameter server and starts one without variables in its place."""
        address = self.servers[server].address
        self.stop_server(server)
        self.servers[server] = _server(server, address)

    def start(self, worker: int) -> None:
        """Starts a worker that was stopped, where it was."""
        address = self.cluster.task_address("worker", worker)
        self._workers[worker] = _worker(worker, address)

    def start_new(self, worker: int) -> str:
        """Starts a worker that the cluster does not know; returns its address."""
        self._workers[worker] = _worker(worker)
        return self._workers[worker].address

    def staying(self, worker: int) -> int:
        """How many results stay on a worker."""
        sessions = self._workers[worker]._state._sessions.values()
        return sum(len(session.results) for session in sessions)

    def close(self) -> None:
        """Ends all workers and servers."""
        for worker in self._workers.values():
            worker.stop(grace=0)
        for server in self.servers:
            server.stop(grace=0)
        for places in (self._servers, self._places):
            places.close()


def _worker(
    index: int, bind: str = "127.0.0.1:0", importable_only: Sequence[str] = ()
) -> WorkerServer:
    settings = WorkerSettings(
        bind=bind,
        task=index,
        token=TOKEN,
        # A lease that ends within a test would hide what is noticed without it.
        lease_seconds=120.0,
        importable_only=tuple(importable_only),
    )
    worker = WorkerServer(settings)
    worker.start()
    return worker


def _server(index: int, bind: str) -> ParameterServer:
    server = ParameterServer(ServerSettings(bind=bind, task=index, token=TOKEN))
    server.start()
    return server


@contextmanager
def coordinating(
    num_workers: int = 2,
    num_servers: int = 1,
    connect_seconds: float = 60.0,
    resolver: NewResolver = new_resolver,
    importable_only: Sequence[str] = (),
    **settings: Any,
) -> Iterator[Coordination]:
    """A coordinator with fresh servers and workers.

    Args:
        num_workers: How many workers there are.
        num_servers: How many parameter servers there are.
        connect_seconds: For how long a server may be away.
        resolver: Makes what the program sees of the cluster.
        importable_only: As of `Coordination`.
        settings: Of the coordinator.
    """
    coordination = Coordination(num_servers, num_workers, importable_only)
    try:
        with coordination.new_strategy(resolver, connect_seconds=connect_seconds) as strategy:
            coordination.strategy = strategy
            coordination.coordinator = ClusterCoordinator(strategy, **settings)
            yield coordination
    finally:
        coordination.close()
