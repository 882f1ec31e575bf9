"""The errors of Stratagem: one tree and the one table of their gRPC status codes.

StratagemError
├── InvalidArgumentError (ValueError)      the request can never succeed as it is
│   ├── InvalidNameError
│   ├── MalformedStreamError
│   ├── UpdateFunctionError                an update function that cannot be traced
│   └── UnbatchedInputError (IndexError)   rows are to be shared, but there are none
├── InvalidTypeError (TypeError)
├── NotFoundError (LookupError)
│   └── VariableNotFoundError
├── AlreadyExistsError (ValueError)
├── FailedPreconditionError (RuntimeError) the state of the system forbids it
│   ├── ContextError                       wrong replica, cross-replica or scope context
│   ├── AttachmentError                    worker and chief built different variables
│   ├── SessionLostError                   the server no longer knows the session
│   ├── ProtocolVersionError
│   └── ForkedProcessError                 a connection used in a forked child
├── OutOfRangeError (IndexError)
├── UnimplementedError (NotImplementedError)
├── UnauthenticatedError (PermissionError)
├── PermissionDeniedError (PermissionError)
├── ResourceExhaustedError (MemoryError)
├── AbortedError (RuntimeError)            the peers made progress impossible; retry
├── CancelledError (RuntimeError)
├── DeadlineExceededError (TimeoutError)
├── UnavailableError (ConnectionError)     the server cannot be reached now
├── DataLossError (RuntimeError)
└── InternalError (RuntimeError)           a bug; please report it

Both sides translate by `STATUS_CODES`; `stratagem_proto.status` does it.
"""

from __future__ import annotations

from grpc import StatusCode


class StratagemError(Exception):
    """Root of the tree.

    Attributes:
        variable: Name of the variable that the error is about, or "".
        task: Task that raised it, for instance "/job:ps/task:0", or "".
        location: "file.py:12" in the user's source, or "".
    """

    def __init__(
        self, message: str, *, variable: str = "", task: str = "", location: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.variable = variable
        self.task = task
        self.location = location

    def __str__(self) -> str:
        return self.message


class InvalidArgumentError(StratagemError, ValueError):
    """An argument has a value that can never be right."""


class InvalidNameError(InvalidArgumentError):
    """A name is empty, too long, or has characters outside of the allowed ones."""


class MalformedStreamError(InvalidArgumentError):
    """A stream of tensor chunks is truncated, out of order or too long."""


class UpdateFunctionError(InvalidArgumentError):
    """An update function does what cannot be sent to a server as a graph."""


class UnbatchedInputError(InvalidArgumentError, IndexError):
    """A dataset is to be split between replicas, but its elements are no batches."""


class InvalidTypeError(StratagemError, TypeError):
    """An argument has the wrong type."""


class NotFoundError(StratagemError, LookupError):
    """The named thing does not exist."""


class VariableNotFoundError(NotFoundError):
    """No server hosts a variable of this name."""


class AlreadyExistsError(StratagemError, ValueError):
    """A thing of this name exists already."""


class FailedPreconditionError(StratagemError, RuntimeError):
    """The system is not in the state that the call needs."""


class ContextError(FailedPreconditionError):
    """The call is not allowed in the current replica or cross-replica context."""


class AttachmentError(FailedPreconditionError):
    """This worker's variables are not those that the chief created."""


class SessionLostError(FailedPreconditionError):
    """The server does not know the session, for instance after a restart."""


class ProtocolVersionError(FailedPreconditionError):
    """Client and server speak versions of the contract that do not meet."""


class ForkedProcessError(FailedPreconditionError):
    """A connection was used in a child process made by fork."""


class OutOfRangeError(StratagemError, IndexError):
    """An index or a position lies outside of the valid range."""


class UnimplementedError(StratagemError, NotImplementedError):
    """The operation does not exist for this object."""


class UnauthenticatedError(StratagemError, PermissionError):
    """The peer did not prove that it belongs to the cluster."""


class PermissionDeniedError(StratagemError, PermissionError):
    """The peer is known but may not do this."""


class ResourceExhaustedError(StratagemError, MemoryError):
    """A byte budget or another limit would be exceeded."""


class AbortedError(StratagemError, RuntimeError):
    """What the call waited for cannot happen any more."""


class CancelledError(StratagemError, RuntimeError):
    """The call was given up before it ended."""


class DeadlineExceededError(StratagemError, TimeoutError):
    """The call took longer than its deadline."""


class UnavailableError(StratagemError, ConnectionError):
    """The server cannot be reached at the moment."""


class DataLossError(StratagemError, RuntimeError):
    """Data is lost or damaged beyond repair."""


class InternalError(StratagemError, RuntimeError):
    """Stratagem broke one of its own promises."""


# The first class of each code is the one that a bare status becomes.
STATUS_CODES: dict[type[StratagemError], StatusCode] = {
    InvalidArgumentError: StatusCode.INVALID_ARGUMENT,
    InvalidNameError: StatusCode.INVALID_ARGUMENT,
    MalformedStreamError: StatusCode.INVALID_ARGUMENT,
    UpdateFunctionError: StatusCode.INVALID_ARGUMENT,
    UnbatchedInputError: StatusCode.INVALID_ARGUMENT,
    InvalidTypeError: StatusCode.INVALID_ARGUMENT,
    NotFoundError: StatusCode.NOT_FOUND,
    VariableNotFoundError: StatusCode.NOT_FOUND,
    AlreadyExistsError: StatusCode.ALREADY_EXISTS,
    FailedPreconditionError: StatusCode.FAILED_PRECONDITION,
    ContextError: StatusCode.FAILED_PRECONDITION,
    AttachmentError: StatusCode.FAILED_PRECONDITION,
    SessionLostError: StatusCode.FAILED_PRECONDITION,
    ProtocolVersionError: StatusCode.FAILED_PRECONDITION,
    ForkedProcessError: StatusCode.FAILED_PRECONDITION,
    OutOfRangeError: StatusCode.OUT_OF_RANGE,
    UnimplementedError: StatusCode.UNIMPLEMENTED,
    UnauthenticatedError: StatusCode.UNAUTHENTICATED,
    PermissionDeniedError: StatusCode.PERMISSION_DENIED,
    ResourceExhaustedError: StatusCode.RESOURCE_EXHAUSTED,
    AbortedError: StatusCode.ABORTED,
    CancelledError: StatusCode.CANCELLED,
    DeadlineExceededError: StatusCode.DEADLINE_EXCEEDED,
    UnavailableError: StatusCode.UNAVAILABLE,
    DataLossError: StatusCode.DATA_LOSS,
    InternalError: StatusCode.INTERNAL,
    # Foreign code raised something that we have no class for.
    StratagemError: StatusCode.UNKNOWN,
}

CLASSES_BY_NAME = {cls.__name__: cls for cls in STATUS_CODES}
CLASSES_BY_CODE = {code: cls for cls, code in reversed(STATUS_CODES.items())}
