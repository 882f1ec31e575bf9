"""Which process a simulated client sends its requests to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import grpc

from stratagem_proto.errors import NotPrimaryError, StratagemError
from stratagem_proto.v1.replication_pb2 import STANDING_PRIMARY
from stratagem_proto.v1.status_pb2 import GetStatusResponse
from tests.simulation.network import Delivery, Network, Sent
from tests.simulation.replicas.peers import asking
from tests.simulation.replicas.replica import SimulatedReplica
from tests.simulation.servers import SimulatedServer

# As in `stratagem._ps_client.route` and `primary_search`.
_PATIENCE_SECONDS, _TRUST_SECONDS, _ASK_SECONDS = 0.5, 1.0, 0.5


class Route(Protocol):
    """As `stratagem._ps_client.route.ServerRoute`, without threads.

    Attributes:
        server: The process that requests go to.
        takeovers: How often another replica was found to serve.
        has_backup: Whether the server may end without a loss of what it has.
        is_replicated: Whether another process may take over.
    """

    server: SimulatedServer
    takeovers: int
    has_backup: bool
    is_replicated: bool

    async def call(self, sent: Sent, timeout: float | None) -> list[bytes]:
        """Send a request; raise as `Network.call`."""

    async def find(self, left: SimulatedServer, error: StratagemError) -> bool:
        """Look who serves after a failure; return whether it makes sense to try again."""


class SoleRoute:
    """The way to a server that has no replicas."""

    is_replicated, has_backup, takeovers = False, True, 0

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
        self._loop = network.world.loop
        self._replicas = replicas
        self.server: SimulatedServer = replicas[0]
        self.takeovers, self.has_backup, self._epoch = 0, True, 0
        # What is under way at the server, and what of that somebody waits for.
        self._under_way: dict[Delivery, None] = {}
        self._awaited: dict[Delivery, None] = {}
        self._finding, self._searches = asyncio.Lock(), 0
        self._looking: asyncio.Task[None] | None = None
        self._looks_from = 0.0

    async def call(self, sent: Sent, timeout: float | None) -> list[bytes]:
        """Send a request, and give it up when another replica serves; raise as `Network.call`."""
        delivery = self._network.begin(self._client, self.server, sent, timeout)
        self._under_way[delivery] = None
        if timeout is not None:
            # Nobody waits for the end of a call that has no deadline.
            self._awaited[delivery] = None
            self._look_after()
        try:
            return await delivery.outcome()
        finally:
            self._under_way.pop(delivery, None)
            self._awaited.pop(delivery, None)

    def _look_after(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = self._loop.create_task(self._look())

    async def _look(self) -> None:
        """Look for another primary while answers are left out for long."""
        while self._awaited:
            first = next(iter(self._awaited))
            due = max(first.began + _PATIENCE_SECONDS, self._looks_from)
            if self._loop.time() < due:
                await asyncio.sleep(due - self._loop.time())
                continue
            async with self._finding:
                is_found = await self._search()
            # One that says that it serves has its reasons.
            patience = _TRUST_SECONDS if is_found else _PATIENCE_SECONDS
            self._looks_from = self._loop.time() + patience

    async def find(self, left: SimulatedServer, error: StratagemError) -> bool:
        """Look who serves after a failure; return whether it makes sense to try again."""
        searches = self._searches
        async with self._finding:
            if left is not self.server:
                return True
            if isinstance(error, NotPrimaryError):
                for replica in self._replicas:
                    if replica.name == error.primary:
                        return self._follow(replica, error.epoch, has_backup=True)
            # Somebody else may have looked in vain meanwhile.
            return self._searches == searches and await self._search()

    async def _search(self) -> bool:
        """Ask all replicas whether they serve; follow the first that does."""
        self._searches += 1
        network, answered = self._network, asyncio.Queue[asyncio.Future[list[bytes]]]()
        asked = [asking(network, self._client, one, _ASK_SECONDS) for one in self._replicas]
        replicas = {
            delivery.answer: one for delivery, one in zip(asked, self._replicas, strict=True)
        }
        for answer in replicas:
            answer.add_done_callback(answered.put_nowait)
        try:
            for _ in asked:
                answer = await answered.get()
                found = _told(replicas[answer], answer)
                if found is not None and found[1] >= self._epoch:
                    return self._follow(*found)
            return False
        finally:
            for delivery in asked:
                delivery.end()

    def _follow(self, primary: SimulatedReplica, epoch: int, has_backup: bool) -> bool:
        if epoch < self._epoch:
            return False
        if primary is not self.server or 0 < self._epoch < epoch:
            self.takeovers += 1
        self._epoch, self.has_backup = epoch, has_backup
        if primary is not self.server:
            why = f"{self.server.name} serves no more"
            self.server = primary
            for delivery in self._under_way:
                delivery.fail(grpc.StatusCode.UNAVAILABLE, why)
        return True


def _told(
    replica: SimulatedReplica, answer: asyncio.Future[list[bytes]]
) -> tuple[SimulatedReplica, int, bool] | None:
    """Return a replica's epoch and whether it has a backup, if it says that it serves."""
    if answer.cancelled() or answer.exception() is not None:
        return None
    status = GetStatusResponse.FromString(answer.result()[0])
    told = status.parameter_server.replication
    if told.standing != STANDING_PRIMARY:
        return None
    # A task that moves has no backup that a request could wait for.
    return replica, told.view.epoch, told.is_movable or told.view.HasField("backup")
