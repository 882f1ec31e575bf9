"""Servers that come back elsewhere, and a resolver that knows where."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from stratagem import ClusterSpec, ParameterServerStrategy, Variable
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.conftest import TOKEN


class MovingServers:
    """Two servers, and a resolver that knows where they are."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root = root
        self._stack = stack
        self._running = [self._started(task) for task in range(2)]

    def _started(self, task: int) -> ParameterServer:
        settings = ServerSettings(task=task, token=TOKEN, restore=str(self.root))
        return self._stack.enter_context(ParameterServer(settings))

    @property
    def addresses(self) -> Sequence[str]:
        return [server.address for server in self._running]

    def move(self, task: int) -> None:
        """Starts one somewhere else, while its old address is still taken."""
        moved = self._started(task)
        self._running[task].stop(0)
        self._running[task] = moved


class Resolver(SimpleClusterResolver):
    """Looks at the servers each time."""

    def __init__(self, servers: MovingServers, worker: str = "worker0.test:1") -> None:
        super().__init__(ClusterSpec({}), task_type="worker", task_id=0)
        self.silent = False
        self.cluster_token = TOKEN
        self._servers, self._worker = servers, worker

    def cluster_spec(self) -> ClusterSpec:
        if self.silent:
            raise OSError("nobody knows")
        jobs = {"ps": self._servers.addresses, "worker": [self._worker]}
        return ClusterSpec(jobs | ({"chief": ["h:1"]} if self.task_type == "chief" else {}))


def counters(strategy: ParameterServerStrategy) -> list[Variable]:
    with strategy.scope():
        return [Variable(1.0, name=f"on{server}") for server in range(2)]
