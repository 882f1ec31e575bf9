"""The service of a replica, whose state and handlers are exchanged when its part changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NoReturn

import grpc

from stratagem_proto.errors import NotPrimaryError, StratagemError, UnavailableError
from stratagem_proto.v1 import replication_pb2
from stratagem_proto.v1.replication_pb2 import (
    FollowRequest,
    FollowResponse,
    Replica,
    ReplicationStatus,
    View,
)
from stratagem_proto.wire.status import code_of, to_record, trailers
from stratagem_psserver.persistence.persistence import Persistence, present_kernels, state_folder
from stratagem_psserver.replication.arbiter import Arbiter
from stratagem_psserver.replication.calls import FOLLOW, IncomingCall
from stratagem_psserver.replication.exchange import Channel, Peers
from stratagem_psserver.replication.replica import ReplicatedTask, introduction_of
from stratagem_psserver.replication.standby import ReplicaDisk
from stratagem_psserver.service import Service
from stratagem_psserver.state import ServerState
from stratagem_rpc.server_call import CallMessages, ServerCall
from stratagem_rpc.serving.rpc_boundary import Handler, Rpc, RpcBoundary, handler_of


class ExchangedHandlers(grpc.GenericRpcHandler):
    """Passes each call to the handlers that are there now."""

    def __init__(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self.present = handlers

    def service(self, details: Any) -> Any:
        return next(filter(None, (each.service(details) for each in self.present)), None)


class RefusingHandlers(grpc.GenericRpcHandler):
    """Answers all calls of some services, by their handlers, with the error that is returned."""

    def __init__(
        self,
        refused: Sequence[grpc.GenericRpcHandler],
        error: Callable[[], StratagemError],
    ) -> None:
        self._refused = ExchangedHandlers(refused)
        self._error = error

    def service(self, details: Any) -> Any:
        handler = self._refused.service(details)
        return None if handler is None else self._refusing(handler)

    def _refusing(self, handler: Any) -> Any:
        async def refuse(_: object, call: ServerCall) -> NoReturn:
            # Not logged: clients look for the primary by asking, and repeat their requests.
            record = to_record(self._error())
            await call.abort(code_of(record), record.message, trailers(record))

        async def refuse_stream(_: object, call: ServerCall) -> AsyncIterator[bytes]:
            await refuse(_, call)
            yield b""

        make = _MAKERS[handler.request_streaming, handler.response_streaming]
        return make(refuse_stream if handler.response_streaming else refuse)


_MAKERS: dict[tuple[bool, bool], Callable[..., Any]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


_REPLICATION = replication_pb2.DESCRIPTOR.services_by_name["ReplicationService"]


class ReplicatedService:
    """Answers clients while it is the primary, and refuses them otherwise.

    Attributes:
        service: What answers calls about the present state.
        handlers: The handlers of all calls.
        is_serving: Whether clients are answered.
        served_since: When that began last, by the clock of the state.
        address: The "host:port" at which others reach this server; "" before `begin`.
    """

    def __init__(
        self, state: ServerState, arbiter: Arbiter, peers: Peers, on_exchange: Callable[[], None]
    ) -> None:
        self._arbiter, self._peers, self._on_exchange = arbiter, peers, on_exchange
        self._kernels, self._disk = present_kernels(), _disk_of(state)
        self._task: ReplicatedTask | None = None
        self._running: asyncio.Task[None] | None = None
        self.is_serving, self.served_since, self.address = False, 0.0, ""
        self.service = Service(state, self._replication)
        boundary = state.boundary()
        self._for_peers = (_following_handler(boundary, self.answer),)
        self._present = ExchangedHandlers(())
        self.handlers: tuple[grpc.GenericRpcHandler, ...] = (self._present,)
        self.refuse()

    def _require_task(self) -> ReplicatedTask:
        if self._task is None:
            raise UnavailableError(f"{self.state.settings.label} is starting; ask again")
        return self._task

    def _replication(self) -> ReplicationStatus:
        return self._require_task().report()

    async def answer(self, call: Channel[FollowResponse, FollowRequest]) -> None:
        """Let another replica follow this one; raise as `ReplicatedTask.answer`."""
        await self._require_task().answer(call)

    @property
    def state(self) -> ServerState:
        return self.service.state

    def fresh_state(self) -> ServerState:
        state = self.state
        return ServerState(state.settings, state.environment, state.handshakes)

    def adopt(self, state: ServerState) -> None:
        """Replace the state by another one; whoever waits in the former is refused."""
        former = self.service
        state.frame_sockets = former.state.frame_sockets
        self.service = Service(state, self._replication)
        former.state.attendance.close()
        former.state.waits.close(self._refused())
        self._closing = asyncio.ensure_future(former.saves.close())

    def obstacle(self) -> str:
        """Return what would be lost if another server went on with the state; "" if nothing."""
        label = self.state.settings.label
        if self.service.saves.are_awaited:
            return f"{label} writes a checkpoint; move it once that is written"
        if self.state.held.is_used:
            return f"clients read from snapshots of {label}; move it once they have left them"
        if self.state.staging.is_used:
            return f"{label} is about to restore a checkpoint; move it once that is done"
        return ""

    def serve(self) -> None:
        self.is_serving, self.served_since = True, self.state.clock()
        self._exchange(*self.service.handlers)

    def refuse(self) -> None:
        """Refuse clients from now on, and tell them where the primary is."""
        self.is_serving = False
        self._exchange(RefusingHandlers(self.service.handlers, self._refused))

    def _refused(self) -> NotPrimaryError:
        error = NotPrimaryError(f"this replica of {self.state.settings.label} serves no clients")
        if self._task is not None:
            error.primary, error.epoch = self._task.primary
        if error.primary:
            error.message += f"; the primary is at {error.primary}"
        return error

    def _exchange(self, *answering: grpc.GenericRpcHandler) -> None:
        self._present.present = (*self.service.handlers_for_all, *self._for_peers, *answering)
        self._on_exchange()

    def begin(self, address: str) -> None:
        """Take part in the replication; others reach this server at that "host:port"."""
        self.address = address
        replica = Replica(index=self.state.settings.replica_number, address=address)
        introduction = introduction_of(self.state.settings, replica, self._kernels)
        self._task = ReplicatedTask(self, self._arbiter, self._peers, introduction, self._disk)
        self._running = asyncio.create_task(self._task.run())

    @property
    def has_state(self) -> bool:
        return self._disk is not None and self._disk.persistence.has_state

    @property
    def has_place(self) -> bool:
        """Whether it serves, or is the backup that may take over: then the other one may end."""
        return self._task is not None and self._task.has_place

    async def recover(self) -> None:
        """Come to the state that is on disk, if there is any; raise as `Persistence.recover`."""
        if self._disk is not None:
            await self._disk.recover()

    def tend(self) -> None:
        if self._disk is not None and self.is_serving:
            self._disk.persistence.tend()

    async def take_over(self, seconds: float, bytes_per_second: int = 0) -> View:
        """Have the task move to this server; as `ReplicatedTask.take_over`."""
        return await self._require_task().take_over(seconds, bytes_per_second)

    async def leave(self) -> bool:
        """Leave the task to the other replica, if that has everything; return whether it serves."""
        if self._task is not None:
            await self._task.leave()
        return self._task is not None and bool(self._task.primary[0])

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        if self._task is not None:
            await self._task.close()
        if self._disk is not None:
            await self._disk.close()
        await self._arbiter.close()

    def release(self) -> None:
        """Release what it holds, without having taken part."""
        if self._disk is not None:
            self._disk.release()


def _disk_of(state: ServerState) -> ReplicaDisk | None:
    if state.settings.durability != "log":
        return None
    folder = state_folder(state.settings)
    if folder.replica is None:
        # A process that ended while an image came has left a part of it, which nobody relies on.
        try:
            folder.clear()
        except OSError as error:
            folder.release()
            raise UnavailableError(
                f"an incomplete state in {str(folder.path)!r} cannot be removed: "
                f"{error.strerror}; see that its disk works"
            ) from error
    return ReplicaDisk(folder, Persistence(state, folder))


def _following_handler(
    boundary: RpcBoundary, answer: Callable[[IncomingCall], Awaitable[None]]
) -> grpc.GenericRpcHandler:
    """Return what answers a backup, by a call that stays open."""

    def make(rpc: Rpc) -> Handler:
        async def answered(requests: CallMessages, call: ServerCall) -> None:
            async with rpc.crossing(call) as crossing:
                await answer(IncomingCall(requests, call, crossing.admit))

        return grpc.stream_stream_rpc_method_handler(answered)

    return handler_of(boundary, _REPLICATION, {FOLLOW: make})
