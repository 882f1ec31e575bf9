"""The table of the errors and their status codes of gRPC."""

from __future__ import annotations

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
    OutOfRangeError,
    PermissionDeniedError,
    ProtocolVersionError,
    PSUnavailableError,
    ResourceExhaustedError,
    RowIndexError,
    SessionLostError,
    StratagemError,
    UnauthenticatedError,
    UnavailableError,
    UnbatchedInputError,
    UnfinishedStepError,
    UnimplementedError,
    UpdateFunctionError,
    VariableNotFoundError,
    WorkerLostError,
)

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
    SessionLostError: StatusCode.FAILED_PRECONDITION,
    ProtocolVersionError: StatusCode.FAILED_PRECONDITION,
    ForkedProcessError: StatusCode.FAILED_PRECONDITION,
    ClosureInputError: StatusCode.FAILED_PRECONDITION,
    OutOfRangeError: StatusCode.OUT_OF_RANGE,
    UnimplementedError: StatusCode.UNIMPLEMENTED,
    UnauthenticatedError: StatusCode.UNAUTHENTICATED,
    PermissionDeniedError: StatusCode.PERMISSION_DENIED,
    ResourceExhaustedError: StatusCode.RESOURCE_EXHAUSTED,
    AbortedError: StatusCode.ABORTED,
    UnfinishedStepError: StatusCode.ABORTED,
    CancelledError: StatusCode.CANCELLED,
    DeadlineExceededError: StatusCode.DEADLINE_EXCEEDED,
    UnavailableError: StatusCode.UNAVAILABLE,
    PSUnavailableError: StatusCode.UNAVAILABLE,
    WorkerLostError: StatusCode.UNAVAILABLE,
    DataLossError: StatusCode.DATA_LOSS,
    InternalError: StatusCode.INTERNAL,
    # An error without a class of its own, for instance of gRPC.
    StratagemError: StatusCode.UNKNOWN,
}

CLASSES_BY_NAME = {cls.__name__: cls for cls in STATUS_CODES}
CLASSES_BY_CODE = {code: cls for cls, code in reversed(STATUS_CODES.items())}
