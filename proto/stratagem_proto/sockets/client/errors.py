"""The errors of calls over sockets, which are like those of gRPC."""

from __future__ import annotations

from typing import Any

import grpc

from stratagem_proto.sockets.frames import SocketFrame
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.wire.status import code_of, trailers


class SocketError(grpc.RpcError):
    """A call that failed; it has the methods of gRPC's errors."""

    def __init__(self, status: RecordedStatus) -> None:
        super().__init__(status.message)
        self._status = status

    def code(self) -> grpc.StatusCode:
        return code_of(self._status)

    def details(self) -> str:
        return self._status.message

    def trailing_metadata(self) -> Any:
        return trailers(self._status)


def broken(error: Exception) -> SocketError:
    """Return the error of a call whose connection broke or whose time is over."""
    code = grpc.StatusCode.UNAVAILABLE
    # A TimeoutError with a number comes from the system and says that the host is gone.
    if isinstance(error, TimeoutError) and error.errno is None:
        code = grpc.StatusCode.DEADLINE_EXCEEDED
    status = RecordedStatus(code=code.value[0], message=f"socket: {error}")
    return SocketError(status)


def require_ok(end: SocketFrame) -> None:
    """Check the status that ends a call.

    Raises:
        SocketError: The call failed.
    """
    status = RecordedStatus.FromString(bytes(end.message))
    if status.code:
        raise SocketError(status)
