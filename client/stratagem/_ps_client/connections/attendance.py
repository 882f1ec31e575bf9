"""A call that lasts as long as a session, by whose end a server sees a client gone."""

from __future__ import annotations

import threading
import time

import grpc

from stratagem._core.interruption import uninterrupted
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.session_pb2 import AttendSessionRequest
from stratagem_proto.wire.channel import open_channel

_SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServerService"].full_name
_PATH = f"/{_SERVICE}/AttendSession"

# Between attempts at a server that is away.
_PAUSE_SECONDS = 0.5


class SessionAttendance:
    """Attends one session at a time. Thread-safe.

    The system closes the connections of a process that ends, however it ends. The call has one to
    itself: a thread of gRPC's looks after it, which would come in between the calls of others.
    """

    def __init__(self) -> None:
        self._channel: grpc.Channel | None = None
        self._call: grpc.Future[bytes] | None = None
        self._place = "", b""
        self._again_at = 0.0
        self._closed = False
        self._changing = threading.Lock()

    def begin(self, address: str, session_id: bytes) -> bool:
        """Call the server unless a call is under way; do not wait.

        Args:
            address: "host:port" of the server.
            session_id: Identifier of the session to attend.

        Returns:
            Whether a call was under way.
        """
        with uninterrupted(), self._changing:
            place = address, session_id
            goes_on = self._call is not None and not self._call.done()
            if self._closed or (goes_on and place == self._place):
                return True
            if place == self._place and time.monotonic() < self._again_at:
                return False
            self._place, self._again_at = place, time.monotonic() + _PAUSE_SECONDS
            self._renew(*place)
            return False

    def _renew(self, address: str, session_id: bytes) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = open_channel(address)
        method: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        method = self._channel.unary_unary(_PATH)
        request = AttendSessionRequest(session_id=session_id)
        self._call = method.future(request.SerializeToString(), wait_for_ready=False)

    def close(self) -> None:
        """End the call; none can be begun any more."""
        with uninterrupted(), self._changing:
            self._closed = True
            if self._channel is not None:
                self._channel.close()
