"""Errors of the tree as statuses of gRPC and back, for clients and servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import grpc
from google.protobuf.message import DecodeError

from stratagem_proto.errors import (
    InternalError,
    NotPrimaryError,
    ResourceExhaustedError,
    StratagemError,
    UnavailableError,
)
from stratagem_proto.v1.error_pb2 import ErrorDetail, RecordedStatus
from stratagem_proto.wire.failed_handshakes import failed_handshake, hinted
from stratagem_proto.wire.status_codes import CLASSES_BY_CODE, CLASSES_BY_NAME, STATUS_CODES

DETAIL_KEY = "stratagem-error-bin"
_CODES_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}

# The codes of gRPC itself when a server is away or a connection is cut.
_TRANSIENT_CODES = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
}

# The errors of a server that shuts down or is not the primary, or whose budgets are used up at the
# moment.
_TRANSIENT_ERRORS = {
    UnavailableError.__name__,
    NotPrimaryError.__name__,
    ResourceExhaustedError.__name__,
}


def to_record(error: BaseException) -> RecordedStatus:
    """Return an error as a status, which is sent and recorded.

    An exception that is not of the tree becomes an `InternalError` that names only its class, so
    that clients learn nothing of the server's internals.
    """
    if not isinstance(error, StratagemError):
        error = InternalError(
            f"the server failed with {type(error).__name__}; its log has the traceback"
        )
    detail = ErrorDetail(
        error=type(error).__name__,
        variable=error.variable,
        task=error.task,
        location=error.location,
    )
    if isinstance(error, ResourceExhaustedError):
        detail.retry_seconds = error.retry_seconds
    if isinstance(error, NotPrimaryError):
        detail.primary, detail.epoch = error.primary, error.epoch
    return RecordedStatus(
        code=STATUS_CODES[type(error)].value[0], message=error.message, detail=detail
    )


def from_record(record: RecordedStatus) -> StratagemError:
    """Return the error that a status stands for; the inverse of `to_record`."""
    code = _CODES_BY_NUMBER.get(record.code, grpc.StatusCode.UNKNOWN)
    # A peer may say that it failed with the code of success.
    of_code = CLASSES_BY_CODE.get(code, StratagemError)
    cls = CLASSES_BY_NAME.get(record.detail.error, of_code)
    detail = record.detail
    error = cls(
        record.message, variable=detail.variable, task=detail.task, location=detail.location
    )
    if isinstance(error, ResourceExhaustedError) and detail.retry_seconds:
        error.retry_seconds = detail.retry_seconds
    if isinstance(error, NotPrimaryError) and (detail.primary or detail.epoch):
        error.primary, error.epoch = detail.primary, detail.epoch
    return error


def code_of(record: RecordedStatus) -> grpc.StatusCode:
    """Return the gRPC code of a recorded status."""
    return _CODES_BY_NUMBER.get(record.code, grpc.StatusCode.UNKNOWN)


def trailers(record: RecordedStatus) -> tuple[tuple[str, bytes], ...]:
    """Return trailing metadata with the detail of an error."""
    return ((DETAIL_KEY, record.detail.SerializeToString()),)


def from_rpc_error(error: grpc.RpcError, peer: str, method: str) -> StratagemError:
    """Return the error of the tree for a call that has failed.

    Args:
        error: The error that a stub of gRPC raised, which is also the finished call.
        peer: The task and address of the server, for the message.
        method: The name of the RPC, for the message.
    """
    call: grpc.Call = error  # type: ignore[assignment]  # RpcErrors of calls are calls
    detail = detail_of(call.trailing_metadata() or ())
    message = call.details() or "no details"
    code = call.code() or grpc.StatusCode.UNKNOWN
    if not detail.error:
        if refusal := failed_handshake(message):
            code = grpc.StatusCode.UNAUTHENTICATED
        message = f"{method} on {peer}: {refusal or hinted(message)}"
    return from_record(RecordedStatus(code=code.value[0], message=message, detail=detail))


def detail_of(metadata: Sequence[tuple[str, str | bytes]]) -> ErrorDetail:
    """Return the detail of an error in trailing metadata; empty if there is none."""
    for key, value in metadata:
        if key == DETAIL_KEY and isinstance(value, bytes):
            try:
                return ErrorDetail.FromString(value)
            except DecodeError:
                break
    return ErrorDetail()


def is_transient(error: grpc.RpcError) -> bool:
    """Return whether a failed call may succeed when it is repeated.

    An error of the server itself has a detail. It is final, except when the server shuts down or is
    not the primary, or a budget is used up.
    """
    call: grpc.Call = error  # type: ignore[assignment]  # RpcErrors of calls are calls
    detail = detail_of(call.trailing_metadata() or ())
    if detail.error:
        return detail.error in _TRANSIENT_ERRORS
    return call.code() in _TRANSIENT_CODES and not failed_handshake(call.details() or "")


@contextmanager
def translated(peer: str, method: str) -> Iterator[None]:
    """Turn a `grpc.RpcError` of the block into an error of the tree."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(error, peer, method) from error
