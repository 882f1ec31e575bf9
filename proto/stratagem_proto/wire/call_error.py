"""Errors of calls that gRPC has not made, which are like its own."""

from __future__ import annotations

from typing import Any

import grpc

from stratagem_proto.errors import StratagemError
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.wire.status import code_of, to_record, trailers


class CallError(grpc.RpcError):
    """A call that failed; it has the methods of gRPC's errors."""

    def __init__(self, status: RecordedStatus) -> None:
        super().__init__(status.message)
        self._status = status

    @classmethod
    def of(cls, error: StratagemError) -> CallError:
        """Return a call that the caller itself ends by an error."""
        return cls(to_record(error))

    def code(self) -> grpc.StatusCode:
        return code_of(self._status)

    def details(self) -> str:
        return self._status.message

    def trailing_metadata(self) -> Any:
        return trailers(self._status)
