"""Errors of the tree as statuses of gRPC and back, for clients and servers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import StatusCode

from stratagem_proto.errors import (
    AbortedError,
    AlreadyExistsError,
    AttachmentError,
    CancelledError,
    ClosureInputError,
    ContextError,
    DataLossError,
    DeadlineExceededError,
    DifferentTrainingError,
    DuplicateTaskError,
    FailedPreconditionError,
    ForkedProcessError,
    InternalError,
    InvalidArgumentError,
    InvalidNameError,
    InvalidTypeError,
    MalformedStreamError,
    NonFiniteGradientError,
    NotFoundError,
    NotPrimaryError,
    OutOfRangeError,
    PermissionDeniedError,
    ProtocolVersionError,
    PSUnavailableError,
    ResourceExhaustedError,
    RowIndexError,
    SessionLostError,
    StaleVersionError,
    StoreError,
    StratagemError,
    SupersededError,
    UnauthenticatedError,
    UnavailableError,
    UnbatchedInputError,
    UnevenStepsError,
    UnfinishedStepError,
    UnimplementedError,
    UnstagedContributionError,
    UpdateFunctionError,
    VariableNotFoundError,
    VersionExpiredError,
    WorkerFunctionError,
    WorkerLostError,
)
from stratagem_proto.v1.error_pb2 import ErrorDetail, RecordedStatus

# A status without a detail becomes the first class of its code.
STATUS_CODES: dict[type[StratagemError], StatusCode] = {
    InvalidArgumentError: StatusCode.INVALID_ARGUMENT,
    InvalidNameError: StatusCode.INVALID_ARGUMENT,
    RowIndexError: StatusCode.INVALID_ARGUMENT,
    MalformedStreamError: StatusCode.INVALID_ARGUMENT,
    UpdateFunctionError: StatusCode.INVALID_ARGUMENT,
    NonFiniteGradientError: StatusCode.INVALID_ARGUMENT,
    UnbatchedInputError: StatusCode.INVALID_ARGUMENT,
    InvalidTypeError: StatusCode.INVALID_ARGUMENT,
    NotFoundError: StatusCode.NOT_FOUND,
    VariableNotFoundError: StatusCode.NOT_FOUND,
    AlreadyExistsError: StatusCode.ALREADY_EXISTS,
    DuplicateTaskError: StatusCode.ALREADY_EXISTS,
    FailedPreconditionError: StatusCode.FAILED_PRECONDITION,
    ContextError: StatusCode.FAILED_PRECONDITION,
    AttachmentError: StatusCode.FAILED_PRECONDITION,
    UnstagedContributionError: StatusCode.FAILED_PRECONDITION,
    SessionLostError: StatusCode.FAILED_PRECONDITION,
    SupersededError: StatusCode.FAILED_PRECONDITION,
    DifferentTrainingError: StatusCode.FAILED_PRECONDITION,
    VersionExpiredError: StatusCode.FAILED_PRECONDITION,
    ProtocolVersionError: StatusCode.FAILED_PRECONDITION,
    ForkedProcessError: StatusCode.FAILED_PRECONDITION,
    ClosureInputError: StatusCode.FAILED_PRECONDITION,
    StoreError: StatusCode.FAILED_PRECONDITION,
    OutOfRangeError: StatusCode.OUT_OF_RANGE,
    UnimplementedError: StatusCode.UNIMPLEMENTED,
    UnauthenticatedError: StatusCode.UNAUTHENTICATED,
    PermissionDeniedError: StatusCode.PERMISSION_DENIED,
    ResourceExhaustedError: StatusCode.RESOURCE_EXHAUSTED,
    AbortedError: StatusCode.ABORTED,
    UnfinishedStepError: StatusCode.ABORTED,
    UnevenStepsError: StatusCode.ABORTED,
    WorkerFunctionError: StatusCode.ABORTED,
    CancelledError: StatusCode.CANCELLED,
    DeadlineExceededError: StatusCode.DEADLINE_EXCEEDED,
    UnavailableError: StatusCode.UNAVAILABLE,
    NotPrimaryError: StatusCode.UNAVAILABLE,
    PSUnavailableError: StatusCode.UNAVAILABLE,
    StaleVersionError: StatusCode.UNAVAILABLE,
    WorkerLostError: StatusCode.UNAVAILABLE,
    DataLossError: StatusCode.DATA_LOSS,
    InternalError: StatusCode.INTERNAL,
    # An error without a class of its own, for instance of gRPC.
    StratagemError: StatusCode.UNKNOWN,
}

CLASSES_BY_NAME = {cls.__name__: cls for cls in STATUS_CODES}
CLASSES_BY_CODE = {code: cls for cls, code in reversed(STATUS_CODES.items())}


# What gRPC and its library for TLS say, and what it means to the client. Nothing of it changes by
# itself.
_MEANINGS = {
    "Hostname Verification Check failed": "what answers there shows the certificate of another "
    "task or cluster; check its address, and its certificate by `stratagem certs show`",
    "CERTIFICATE_VERIFY_FAILED": "what answers there shows a certificate that is not valid now, or "
    "that no authority in ca.crt of this process has signed; check both ends by `stratagem certs "
    "show`",
    "WRONG_VERSION_NUMBER": "what answers there does not encrypt, and this process shows "
    "certificates; start the server with --tls, or leave STRATAGEM_TLS out",
}

# A server tells nobody why it refuses a certificate, or who shows none.
_HUNG_UP = "failed to connect to all addresses", "Socket closed"
_HINT = (
    "; if the server has certificates (--tls), it hangs up on whoever shows none or one that its "
    "authority has not signed: check STRATAGEM_TLS of this process"
)


def failed_handshake(details: str) -> str:
    """Return what is wrong with the certificates of a connection; "" if nothing is, as far known.

    Args:
        details: What gRPC says of the connection that has failed.
    """
    found = (meaning for words, meaning in _MEANINGS.items() if words in details)
    return next(found, "")


_UNREACHED = re.compile(
    r"failed to connect to all addresses; last error: \w+: \S+: "
    r"(?:Failed to connect to remote host: )?"
)


def hinted(details: str) -> str:
    """Return what gRPC says of a connection, with a hint where a certificate may be the reason."""
    hint = _HINT if all(words in details for words in _HUNG_UP) else ""
    return _UNREACHED.sub("no connection could be made: ", details) + hint


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
        raise from_rpc_error(error, peer, method) from None


class CallError(grpc.RpcError):
    """A call that failed; it has the methods of gRPC's errors."""

    def __init__(self, status: RecordedStatus) -> None:
        super().__init__(status.message)
        self._status = status

    @classmethod
    def from_error(cls, error: StratagemError) -> CallError:
        """Return a call that the caller itself ends by an error."""
        return cls(to_record(error))

    def code(self) -> grpc.StatusCode:
        return code_of(self._status)

    def details(self) -> str:
        return self._status.message

    def trailing_metadata(self) -> Any:
        return trailers(self._status)
