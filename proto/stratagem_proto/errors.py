"""The errors of Stratagem: one tree.

StratagemError
├── InvalidArgumentError (ValueError)      the request can never succeed as it is
│   ├── InvalidNameError
│   ├── RowIndexError (IndexError)         there is no such row
│   ├── MalformedStreamError
│   ├── UpdateFunctionError                an update function that cannot be traced
│   ├── NonFiniteGradientError (FloatingPointError) NaN or infinity in a gradient
│   └── UnbatchedInputError (IndexError)   a batch to split has no rows
├── InvalidTypeError (TypeError)
├── NotFoundError (LookupError)
│   └── VariableNotFoundError
├── AlreadyExistsError (ValueError)
│   └── DuplicateTaskError (KeyError)      two descriptions of one task of a cluster
├── FailedPreconditionError (RuntimeError) the state of the system forbids it
│   ├── ContextError                       wrong replica, cross-replica or scope context
│   ├── AttachmentError                    worker and chief built different variables
│   ├── UnstagedContributionError          nothing is staged of what is to count
│   ├── SessionLostError                   the server no longer knows the session
│   ├── DifferentTrainingError             what is followed is no longer the same training
│   ├── VersionExpiredError                a version was pinned for longer than its lease
│   ├── SupersededError                    another process has the place of this one
│   ├── ProtocolVersionError
│   ├── ForkedProcessError                 a connection used in a forked child
│   ├── ClosureInputError                  what a closure uses is not on its worker
│   └── StoreError                         a store of checkpoints fails or does not answer
├── OutOfRangeError (IndexError)           data have ended
├── UnimplementedError (NotImplementedError)
├── UnauthenticatedError (PermissionError)
├── PermissionDeniedError (PermissionError)
├── ResourceExhaustedError (MemoryError)
├── AbortedError (RuntimeError)            what the call waited for cannot happen
│   ├── WorkerFunctionError                stands for an exception that does not travel
│   ├── UnevenStepsError                   a worker takes no more synchronous steps
│   └── UnfinishedStepError                no worker sent the norm of a step
├── CancelledError (RuntimeError)
├── DeadlineExceededError (TimeoutError)
├── UnavailableError (ConnectionError)     the server cannot be reached now
│   ├── NotPrimaryError                    a replica that serves no clients
│   ├── StaleVersionError                  the version at hand is older than it may be
│   ├── PSUnavailableError                 a parameter server that a worker needs
│   └── WorkerLostError                    a worker is gone, with what it was running
├── DataLossError (RuntimeError)
└── InternalError (RuntimeError)           a bug; please report it

`stratagem_proto.wire.status` carries them over the wire. This module does not import gRPC, which
takes long to load.
"""

from __future__ import annotations


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
    """An argument has a value that is never valid."""


class InvalidNameError(InvalidArgumentError):
    """A name is empty, too long, or has characters outside of the allowed ones."""


class RowIndexError(InvalidArgumentError, IndexError):
    """An index names a row or a position that a tensor does not have.

    It is not an `OutOfRangeError`, which ends loops over data.
    """


class MalformedStreamError(InvalidArgumentError):
    """A stream of tensor chunks is truncated, out of order or too long."""


class UpdateFunctionError(InvalidArgumentError):
    """An update function cannot be sent to a server as a graph."""


class NonFiniteGradientError(InvalidArgumentError, FloatingPointError):
    """A gradient has NaN or infinities, which the limits of gradients forbid."""


class UnbatchedInputError(InvalidArgumentError, IndexError):
    """A dataset is to be split between replicas, but its elements are not batches."""


class InvalidTypeError(StratagemError, TypeError):
    """An argument has the wrong type."""


class NotFoundError(StratagemError, LookupError):
    """The named thing does not exist."""


class VariableNotFoundError(NotFoundError):
    """No server hosts a variable of this name."""


class AlreadyExistsError(StratagemError, ValueError):
    """A thing of this name exists already."""


class DuplicateTaskError(AlreadyExistsError, KeyError):
    """A task of a cluster is described twice."""


class FailedPreconditionError(StratagemError, RuntimeError):
    """The system is not in the state that the call needs."""


class ContextError(FailedPreconditionError):
    """The call is not allowed in the current replica or cross-replica context."""


class AttachmentError(FailedPreconditionError):
    """This worker's variables are not those that the chief created."""


class UnstagedContributionError(FailedPreconditionError):
    """A server has nothing of a contribution to a synchronous step that is to count."""


class SessionLostError(FailedPreconditionError):
    """The server does not know the session, for instance after a restart."""


class SupersededError(FailedPreconditionError):
    """Another process has the place of this one, as a coordinator or as the same task."""


class DifferentTrainingError(FailedPreconditionError):
    """A source has versions of another training or another model than the reader has followed."""


class VersionExpiredError(FailedPreconditionError):
    """A version was read for longer than the lease of its pin."""


class ProtocolVersionError(FailedPreconditionError):
    """Client and server speak incompatible versions of the contract."""


class ForkedProcessError(FailedPreconditionError):
    """A connection was used in a child process made by fork."""


class ClosureInputError(FailedPreconditionError):
    """An input of a closure is not available on the worker that is to run the closure.

    Attributes:
        original_exception: The reason; None if it is not known.
    """

    original_exception: BaseException | None = None


class StoreError(FailedPreconditionError):
    """A store of checkpoints cannot be reached, or did not do what it was asked."""


class OutOfRangeError(StratagemError, IndexError):
    """Data have ended, or there are none; see `RowIndexError` for indices."""


class UnimplementedError(StratagemError, NotImplementedError):
    """The operation does not exist for this object."""


class UnauthenticatedError(StratagemError, PermissionError):
    """The peer did not prove that it belongs to the cluster."""


class PermissionDeniedError(StratagemError, PermissionError):
    """The peer is known but may not do this."""


class ResourceExhaustedError(StratagemError, MemoryError):
    """A byte budget or another limit would be exceeded.

    Attributes:
        retry_seconds: After how many seconds the server suggests to repeat the request; 0 if
            waiting does not help, or the server suggests nothing.
    """

    retry_seconds: float = 0.0


class AbortedError(StratagemError, RuntimeError):
    """The event that the call waited for cannot happen any more."""


class WorkerFunctionError(AbortedError):
    """A function on a worker raised an exception of a class that does not travel.

    Attributes:
        class_name: The name of that class.
        text: What the exception said.
        traceback: Where it was raised, as Python prints it.
    """

    class_name = ""
    text = ""
    traceback = ""


class UnfinishedStepError(AbortedError):
    """A complete step cannot be applied, because no worker has sent the norm of its gradients."""


class UnevenStepsError(AbortedError):
    """A synchronous step lacks a worker that takes no more steps, since it has done all of its own.

    It has ended, or waits at a barrier. What this worker has contributed changes nothing, unless
    that task is started again and contributes to the step, too.
    """


class CancelledError(StratagemError, RuntimeError):
    """The call was given up before it ended."""


class DeadlineExceededError(StratagemError, TimeoutError):
    """The call took longer than its deadline."""


class UnavailableError(StratagemError, ConnectionError):
    """The server cannot be reached at the moment."""


class NotPrimaryError(UnavailableError):
    """The replica is not the primary of its task; nothing of the request was carried out.

    Attributes:
        primary: The "host:port" of the primary; "" if the replica knows of none.
        epoch: The epoch of the view that says so; 0 if the replica knows of no view.
    """

    primary = ""
    epoch = 0


class StaleVersionError(UnavailableError):
    """A reader has no version that is as fresh as it has to be."""


class PSUnavailableError(UnavailableError):
    """A worker has tried in vain to reach a parameter server, until its time was over."""


class WorkerLostError(UnavailableError):
    """A worker is gone, with everything that it kept and was running.

    Attributes:
        took_leave: Whether it had announced that it shuts down.
    """

    took_leave = False


class DataLossError(StratagemError, RuntimeError):
    """Data is lost or damaged beyond repair."""


class InternalError(StratagemError, RuntimeError):
    """Stratagem broke one of its own promises."""
