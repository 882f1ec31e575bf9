"""Which process a simulated client sends its requests to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import grpc

from stratagem_proto.errors import NotPrimaryError, StratagemError
from stratagem_proto.v1.replication_pb2 import STANDING_PRIMARY
from tests.simulation.network import Network, Sent, failed
from tests.simulation.replicas.peers import asked
from tests.simulation.replicas.replica import SimulatedReplica
from tests.simulation.servers import SimulatedServer

# As in `stratagem._ps_client.connections.route` and `primary_search`.
_PATIENCE_SECONDS, _TRUST_SECONDS, _ASK_SECONDS = 0.5, 1.0, 0.5


class Route(Protocol):
    """As `stratagem._ps_client.connections.route.ServerRoute`, without threads.

    Attributes:
        server: The process that requests go to.
        reigns: How often another replica was found to serve.
        has_backup: Whether the server may end without a loss of what it has.
        is_replicated: Whether another process may take over.
    """

    server: SimulatedServer
    reigns: int
    has_backup: bool
    is_replicated: bool

    async def call(self, sent: Sent, timeout: float | None) -> list[bytes]:
        """Send a request; raise as `Network.call`."""

    async def find(self, left: SimulatedServer, error: StratagemError) -> bool:
        """Look who serves after a failure; return whether it makes sense to try again."""


class SoleRoute:
    """The way to a server that has no replicas."""

    is_replicated, has_backup, reigns = False, True, 0

    def __init__(self, network: Network, client: str, server: SimulatedServer) -> None:
        self._network, self._client, self.server = network, client, server

    async def call(self, sent: Sent, timeout: float | None) -> list[bytes]:
        """Send a request; raise as `Network.call`."""
        return await self._network.call(self._client, self.server, sent, timeout)

    async def find(self, left: SimulatedServer, error: StratagemError) -> bool:
        """Return that it is where it was."""
        return True


class ReplicaRoute:
    """The way to the replica that serves a task."""

    is_replicated = True

    def __init__(self, network: Network, client: str, replicas: Sequence[SimulatedReplica]) -> None:
        self._network, self._client = network, client
        self._replicas = replicas
        self.server: SimulatedServer = replicas[0]
        self.reigns, self.has_backup, self._epoch = 0, True, 0
        self._moved = asyncio.Event()

    async def call(self, sent: Sent, timeout: float | None) -> list[bytes]:
        """Send a request, and give it up when another replica serves; raise as `Network.call`."""
        server, moved = self.server, self._moved
        loop = self._network.world.loop
        calling: asyncio.Task[list[bytes]] = loop.create_task(
            self._network.call(self._client, server, sent, timeout)
        )
        # Nobody waits for the end of a call that has no deadline.
        left = self._left(moved) if timeout is not None else moved.wait()
        leaving: asyncio.Task[Any] = loop.create_task(left)
        try:
            await asyncio.wait([calling, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not calling.done():
                raise failed(grpc.StatusCode.UNAVAILABLE, f"{server.name} serves no more")
            return calling.result()
        finally:
            for task in (calling, leaving):
                task.cancel()

    async def _left(self, moved: asyncio.Event) -> None:
        """Look for another primary while no answer comes; return when there is one."""
        patience = _PATIENCE_SECONDS
        while not moved.is_set():
            try:
                await asyncio.wait_for(moved.wait(), patience)
            except asyncio.TimeoutError:
                # One that says that it serves has its reasons.
                patience = _TRUST_SECONDS if await self._search() else _PATIENCE_SECONDS

    async def find(self, left: SimulatedServer, error: StratagemError) -> bool:
        """Look who serves after a failure; return whether it makes sense to try again."""
        if left is not self.server:
            return True
        if isinstance(error, NotPrimaryError):
            for replica in self._replicas:
                if replica.name == error.primary:
                    return self._follow(replica, error.epoch, has_backup=True)
        return await self._search()

    async def _search(self) -> bool:
        """Ask all replicas whether they serve; follow the first that does."""
        loop = self._network.world.loop
        asking = [loop.create_task(self._asked(one)) for one in self._replicas]
        try:
            for answer in asyncio.as_completed(asking):
                found = await answer
                if found is not None and found[1] >= self._epoch:
                    return self._follow(*found)
            return False
        finally:
            for task in asking:
                task.cancel()

    async def _asked(self, replica: SimulatedReplica) -> tuple[SimulatedReplica, int, bool] | None:
        try:
            status = await asked(self._network, self._client, replica, _ASK_SECONDS)
        except grpc.RpcError:
            return None
        told = status.parameter_server.replication
        if told.standing != STANDING_PRIMARY:
            return None
        # A task that moves has no backup that a request could wait for.
        return replica, told.view.epoch, told.is_movable or told.view.HasField("backup")

    def _follow(self, primary: SimulatedReplica, epoch: int, has_backup: bool) -> bool:
        if epoch < self._epoch:
            return False
        if primary is not self.server or 0 < self._epoch < epoch:
            self.reigns += 1
        self._epoch, self.has_backup = epoch, has_backup
        if primary is not self.server:
            self.server = primary
            moved, self._moved = self._moved, asyncio.Event()
            moved.set()
        return True
