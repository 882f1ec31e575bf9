"""A coordinator and a worker of one cluster, both in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from stratagem import ClusterSpec, ParameterServerStrategy
from stratagem._remote_kinds import KINDS
from stratagem._remote_objects.modules import COORDINATOR_KINDS
from stratagem._shipping.closure_pickler import ClosurePickler
from stratagem._shipping.import_allowlist import AnyCode
from stratagem._shipping.kinds import WorkerTask
from stratagem._shipping.loader import Loader
from stratagem._shipping.outcome_forms import PLAIN
from stratagem.cluster_resolver import SimpleClusterResolver
from tests.client.clusters import running
from tests.conftest import TOKEN


def by_value(function: Callable[..., Any]) -> Any:
    """The function as if it were one of the main program."""
    function.__module__ = "__main__"
    return function


class Coordination:
    """A coordinator, and workers that load what it dumps.

    Args:
        servers: The addresses of parameter servers.
        settings: Of the coordinator's strategy.

    Attributes:
        strategy: The coordinator's strategy.
        closure_pickler: What makes its parcels.
    """

    def __init__(self, servers: list[str], **settings: Any) -> None:
        jobs = {"chief": ["c.test:1"], "worker": ["w0.test:1", "w1.test:1"]}
        cluster = ClusterSpec({**jobs, "ps": servers})
        resolver = SimpleClusterResolver(cluster, task_type="chief", task_id=0)
        settings = {"token": TOKEN, "peer_seconds": 60, **settings}
        self.strategy = ParameterServerStrategy(resolver, **settings)
        self.closure_pickler = ClosurePickler(self.strategy, COORDINATOR_KINDS)
        tasks = [WorkerTask(index, TOKEN) for index in range(2)]
        self._workers = [Loader(task, KINDS, PLAIN, AnyCode()) for task in tasks]
        self._sent: list[dict[int, int]] = [{}, {}]

    def built(self, build: Callable[[], Any]) -> Any:
        """What is built in the scope of the strategy."""
        with self.strategy.scope():
            return build()

    def ship(self, value: Any, worker: int = 0) -> Any:
        """What a worker makes of a value."""
        return self.load(self.closure_pickler.dump(value), worker)

    def load(self, parcel: Any, worker: int = 0) -> Any:
        """What a worker makes of a parcel."""
        self.define(parcel, worker)
        return self._workers[worker].load(parcel.payload)

    def define(self, parcel: Any, worker: int = 0) -> int:
        """Send a worker what it lacks for a parcel; how much that is."""
        missing = parcel.missing(self._sent[worker])
        for one in missing:
            self._workers[worker].define(one.handle, one.encode())
            self._sent[worker][one.handle] = one.revision
        return len(missing)

    def worker(self, index: int = 0) -> Loader:
        """What loads on a worker."""
        return self._workers[index]

    def close(self) -> None:
        """End all sessions."""
        for worker in self._workers:
            worker.close()
        self.strategy.close()


@contextmanager
def coordinating(num_servers: int = 2, **settings: Any) -> Iterator[Coordination]:
    """A coordinator with fresh servers."""
    with running(num_servers) as cluster:
        coordination = Coordination(cluster.servers, **settings)
        try:
            yield coordination
        finally:
            coordination.close()


class Scaled(nn.Module):
    """Has attributes of all sorts."""

    statistics: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 1)
        self.register_buffer("statistics", torch.zeros(2))
        self.scale, self.noted = 1.0, {"names": ["a"]}
