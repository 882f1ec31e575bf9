"""The calls by which simulated backups follow primaries: ordered, late, and cut at any moment."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import grpc

from stratagem_proto.errors import StratagemError, UnavailableError
from stratagem_proto.protocol import PROTOCOL_VERSION
from stratagem_proto.v1.replication_pb2 import FollowRequest, FollowResponse
from stratagem_proto.v1.session_pb2 import ROLE_OBSERVER, OpenSessionRequest
from stratagem_proto.v1.status_pb2 import GetStatusRequest, GetStatusResponse
from stratagem_rpc.asking import SERVICE
from tests.simulation.network import Delivery, Network, Sent
from tests.simulation.server_run import require_alive

if TYPE_CHECKING:
    from tests.simulation.replicas.replica import SimulatedReplica

_ASK_SECONDS = 1.0
_QUICK_SECONDS, _LATE_SECONDS = 0.01, 3.0

# A call has many messages, so that each is late, and each is the last one, less often than a
# request of a client.
_PART = 0.05

# How often a message looks whether the network lets it pass by now.
_LOOK_SECONDS = 0.1

# Messages that are on their way before whoever sends more has to wait.
_ROOM = 8

Message = TypeVar("Message", FollowRequest, FollowResponse)


class Way(Generic[Message]):
    """One direction of a call.

    Args:
        network: What it is part of.
        message_type: What goes this way.
        passes: Whether anything gets through at present.
        cut: Called when the connection breaks.
    """

    def __init__(
        self,
        network: Network,
        message_type: type[Message],
        passes: Callable[[], bool],
        cut: Callable[[], None],
    ) -> None:
        self._world = network.world
        self._read: Callable[[bytes], Message] = message_type.FromString
        self._passes, self._cut = passes, cut
        # Those on their way, as bytes.
        self._sent: deque[tuple[float, bytes]] = deque()
        self._arrived: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._is_moving = False
        self._error: StratagemError | None = None

    async def send(self, message: Message) -> None:
        """Send a message; wait while many are on their way."""
        require_alive()
        while len(self._sent) + len(self._arrived) >= _ROOM and self._error is None:
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise UnavailableError("the simulated call is over")
        world = self._world
        if world.strikes("call cut", world.weather.cut_off * _PART):
            self._after(world.chance.random() * 0.2, self._cut)
        late = world.strikes("record late", world.weather.late * _PART)
        longest = _LATE_SECONDS if late else _QUICK_SECONDS
        due = world.loop.time() + world.chance.random() * longest
        self._sent.append((due, message.SerializeToString()))
        self._move()

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        # The network goes on when whoever has sent something stands still.
        self._world.loop.call_later(seconds, action, context=Context())

    def _move(self) -> None:
        if self._sent and not self._is_moving:
            self._is_moving = True
            self._after(max(self._sent[0][0] - self._world.loop.time(), 0.0), self._arrive)

    def _arrive(self) -> None:
        if not self._passes():
            self._after(_LOOK_SECONDS, self._arrive)
            return
        self._is_moving = False
        if self._sent:
            self._arrived.append(self._sent.popleft()[1])
            self._changed.set()
            self._move()

    async def receive(self) -> Message:
        """Return the next message; raise what has ended the call."""
        while not self._arrived:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        self._changed.set()
        return self._read(self._arrived.popleft())

    def end(self, error: StratagemError) -> None:
        """Lose what is on its way, and perhaps what nobody has read yet."""
        self._error = self._error or error
        self._sent.clear()
        if self._world.chance.random() < 0.5:
            self._arrived.clear()
        self._changed.set()


class IncomingEnd:
    """The primary's end of a call."""

    def __init__(self, call: FollowCall) -> None:
        self._call = call

    async def send(self, message: FollowResponse) -> None:
        """Send a message."""
        await self._call.back.send(message)

    async def receive(self) -> FollowRequest:
        """Return the next message."""
        return await self._call.there.receive()


class FollowCall:
    """A call, and the backup's end of it."""

    def __init__(
        self, network: Network, backup: SimulatedReplica, primary: SimulatedReplica | None
    ) -> None:
        self._network, self._backup, self._primary = network, backup, primary
        self._run = primary.run if primary is not None else None
        self._answering: asyncio.Task[Any] | None = None
        self.there = Way(network, FollowRequest, lambda: self._passes(True), self._cut)
        self.back = Way(network, FollowResponse, lambda: self._passes(False), self._cut)
        self._after(self._arrive)

    def _after(self, action: Callable[[], None]) -> None:
        delay = self._network.world.chance.random() * _QUICK_SECONDS
        self._network.world.loop.call_later(delay, action, context=Context())

    def _passes(self, there: bool) -> bool:
        primary = self._primary
        return primary is None or self._network.passes(self._backup.name, primary, there)

    def _arrive(self) -> None:
        primary = self._primary
        is_there = primary is not None and primary.is_up and primary.run is self._run
        if primary is None or not is_there or not self._passes(True) or not self._passes(False):
            self._end(UnavailableError("nobody is there"))
            return
        self._answering = primary.run.answer(IncomingEnd(self))
        self._answering.add_done_callback(self._answered, context=Context())

    def _answered(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, StratagemError):
            found: StratagemError = type(error)(error.message)
        else:
            found = UnavailableError("the call has ended")
        self._after(lambda: self._tell(found))

    def _tell(self, error: StratagemError) -> None:
        """Let the backup hear of the end, which it does not while nothing gets through."""
        if self._passes(False):
            self._end(error)

    def _cut(self) -> None:
        self._end(UnavailableError("the connection is cut"))

    def _end(self, error: StratagemError) -> None:
        self.there.end(error)
        self.back.end(error)

    async def send(self, message: FollowRequest) -> None:
        """Send a message."""
        await self.there.send(message)

    async def receive(self) -> FollowResponse:
        """Return the next message."""
        return await self.back.receive()

    async def close(self) -> None:
        """End the call; the primary hears of that unless nothing gets through."""
        self.back.end(UnavailableError("the call is closed"))
        self._after(self._leave)

    def _leave(self) -> None:
        if self._passes(True):
            self._end(UnavailableError("the backup has left"))
            if self._answering is not None:
                self._answering.cancel()


class SimulatedPeers:
    """How one replica reaches the other.

    Args:
        network: Carries the calls.
        me: The replica.
        find: Returns the replica at an address.
    """

    def __init__(
        self,
        network: Network,
        me: SimulatedReplica,
        find: Callable[[str], SimulatedReplica | None],
    ) -> None:
        self._network, self._me, self._find = network, me, find

    def call(self, address: str) -> FollowCall:
        """Call the primary at an address."""
        return FollowCall(self._network, self._me, self._find(address))

    async def instance_at(self, address: str) -> bytes:
        """Return the instance of the replica at an address; empty if none answers."""
        target = self._find(address)
        if target is None:
            return b""
        try:
            status = await _status_of(self._network, self._me.name, target, _ASK_SECONDS)
        except grpc.RpcError:
            return b""
        return status.parameter_server.replication.replica.instance


async def _status_of(
    network: Network, who: str, target: SimulatedReplica, seconds: float
) -> GetStatusResponse:
    answer = await asking(network, who, target, seconds).outcome()
    return GetStatusResponse.FromString(answer[0])


def asking(network: Network, who: str, target: SimulatedReplica, seconds: float) -> Delivery:
    """Ask a replica for its status, which is to come in so many seconds."""
    handshake = OpenSessionRequest(protocol_version=PROTOCOL_VERSION, role=ROLE_OBSERVER)
    request = GetStatusRequest(asking=handshake).SerializeToString()
    return network.begin(who, target, Sent(f"/{SERVICE}/GetStatus", [request]), seconds)
