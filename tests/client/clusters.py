"""Clusters whose servers run in this process, for tests of strategies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from stratagem import ClusterSpec, ParameterServerStrategy, Variable
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.conftest import TOKEN

_Result = TypeVar("_Result")


class Cluster:
    """Addresses of servers, and the strategies of workers that use them.

    Args:
        addresses: "host:port" of each server.
        num_workers: How many workers there are.
    """

    def __init__(self, addresses: Sequence[str], num_workers: int) -> None:
        self.servers = list(addresses)
        workers = [f"worker{index}.test:1" for index in range(num_workers)]
        self.spec = ClusterSpec({"ps": list(addresses), "worker": workers})
        self.num_workers = num_workers

    def resolver(self, worker: int = 0) -> SimpleClusterResolver:
        """What tells a worker its place."""
        return SimpleClusterResolver(self.spec, task_type="worker", task_id=worker)

    def strategy(self, worker: int = 0, **settings: Any) -> ParameterServerStrategy:
        """A worker's strategy; close it at the end."""
        settings = {"token": TOKEN, "peer_seconds": 60, **settings}
        return ParameterServerStrategy(self.resolver(worker), **settings)

    def run(
        self,
        program: Callable[[ParameterServerStrategy, int], _Result],
        **settings: Any,
    ) -> list[_Result]:
        """Runs a program once for each worker, all at once, with its strategy."""

        def work(worker: int) -> _Result:
            with self.strategy(worker, **settings) as strategy:
                return program(strategy, worker)

        with ThreadPoolExecutor(self.num_workers) as threads:
            return list(threads.map(work, range(self.num_workers)))


@contextmanager
def running(num_servers: int = 2, num_workers: int = 1, **settings: Any) -> Iterator[Cluster]:
    """A cluster whose servers serve while the scope is open, with further settings of them."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ParameterServer(ServerSettings(task=task, token=TOKEN, **settings)))
            for task in range(num_servers)
        ]
        yield Cluster([server.address for server in servers], num_workers)


def tasks_of(variables: Iterable[Variable]) -> list[str]:
    """The tasks on which variables live, as in "task:1"."""
    return [variable.device_name.split("/")[3] for variable in variables]
