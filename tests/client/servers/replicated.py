"""Servers with replicas in this process, which end and come back."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from stratagem import ParameterServerStrategy
from stratagem_deploy.clusters.servers import replica_standings
from stratagem_deploy.processes.resources import ReservedAddresses
from stratagem_proto.v1.replication_pb2 import STANDING_PRIMARY, View
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.clusters import Cluster
from tests.conftest import TOKEN
from tests.waiting import eventually


class ReplicatedServer:
    """The two replicas of one task.

    Attributes:
        running: Its replicas by number.
    """

    def __init__(self, folder: Path, stack: ExitStack, task: int = 0) -> None:
        self._folder, self._stack, self._task = folder, stack, task
        self.where = stack.enter_context(ReservedAddresses(2))
        self.running = [self._started(number) for number in range(2)]
        self.await_backup()

    def _started(self, number: int) -> ParameterServer:
        settings = ServerSettings(
            task=self._task,
            bind=self.where.replicas[number],
            token=TOKEN,
            replicas=2,
            replica=number,
            arbiter=f"file:{self._folder / 'arbiter'}",
            # One that is stopped leaves the task at once; a busy machine is no failure.
            failover_seconds=10.0,
        )
        return self._stack.enter_context(ParameterServer(settings))

    @property
    def view(self) -> View:
        """That of the primary; empty if there is none."""
        for found in replica_standings(self.where.replicas, TOKEN, 5.0):
            if found is not None and found.standing == STANDING_PRIMARY:
                return found.view
        return View()

    def await_backup(self) -> None:
        """Waits until one could take over."""
        eventually(lambda: self.view.HasField("backup"))

    @property
    def primary(self) -> ParameterServer:
        eventually(lambda: self.view.HasField("primary"))
        return self.running[self.view.primary.index]

    def end(self, server: ParameterServer) -> int:
        """Ends a replica; returns its number."""
        server.stop(0)
        return self.running.index(server)

    def start(self, number: int) -> None:
        """Starts one again that has ended."""
        self.running[number] = self._started(number)

    def strategy(self, connect_seconds: float = 60.0) -> ParameterServerStrategy:
        cluster = Cluster([str(self.where)], 1)
        return cluster.strategy(connect_seconds=connect_seconds)
