"""A worker server."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from stratagem_proto.serving.handshake import challenge_handler
from stratagem_proto.serving.rpc_boundary import RpcBoundary
from stratagem_proto.serving.server import RpcServer
from stratagem_proto.serving.status import StatusService
from stratagem_proto.sockets.server.listening import OfferedSockets
from stratagem_proto.wire.channel import PATIENT_SERVER_OPTIONS
from stratagem_worker.servicer import SERVICE, service_handler
from stratagem_worker.settings import WorkerSettings
from stratagem_worker.state import WorkerState


class WorkerServer(RpcServer):
    """One worker server, in this process.

    Functions run in a thread of its own, one at a time.
    """

    service = SERVICE
    options = PATIENT_SERVER_OPTIONS
    # A session is one call, which its lease ends.
    patience = None

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings)
        self.settings = settings

    def _handlers(self) -> Sequence[grpc.GenericRpcHandler]:
        self._state = WorkerState(self.settings)
        state = self._state
        self._status = StatusService(state.handshakes, state.incarnation, state.figures, state.fill)
        boundary = RpcBoundary(state.handshakes, state.figures)
        challenges = challenge_handler(state.handshakes, lambda: state.incarnation, boundary)
        return (self._status.handler(), challenges, service_handler(state))

    def _status_service(self) -> StatusService:
        return self._status

    def _listens(self, sockets: OfferedSockets) -> None:
        self._state.frame_sockets = sockets

    def _client_of(self, session_id: bytes) -> str | None:
        return self._state.client_of(session_id)

    async def _begin(self) -> None:
        self._state.begin()

    async def _refuse(self, seconds: float) -> None:
        await self._state.drain(seconds)

    async def _end(self) -> None:
        self._state.close()
