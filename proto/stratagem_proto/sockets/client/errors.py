"""The errors of calls over sockets, which are like those of gRPC."""

from __future__ import annotations

import grpc

from stratagem_proto.sockets.frames import SocketFrame
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.wire.call_error import CallError


def broken(error: Exception) -> CallError:
    """Return the error of a call whose connection broke or whose time is over."""
    code = grpc.StatusCode.UNAVAILABLE
    # A TimeoutError with a number comes from the system and says that the host is gone.
    if isinstance(error, TimeoutError) and error.errno is None:
        code = grpc.StatusCode.DEADLINE_EXCEEDED
    status = RecordedStatus(code=code.value[0], message=f"socket: {error}")
    return CallError(status)


def require_ok(end: SocketFrame) -> None:
    """Check the status that ends a call.

    Raises:
        CallError: The call failed.
    """
    status = RecordedStatus.FromString(bytes(end.message))
    if status.code:
        raise CallError(status)
