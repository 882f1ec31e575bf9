"""What a worker says of a function that has ended: its value, or why it failed."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from stratagem._shipping.classes import words_of
from stratagem._shipping.outcome_forms import OutcomeForm
from stratagem_proto.v1 import worker_pb2 as pb


class ClosureAnswer(NamedTuple):
    """The result of a function, or where it is.

    Attributes:
        payload: The result as it travelled; empty if it was kept, stays or was not wanted.
        staying_bytes: Its size if it stays on the worker, to be sent or copied from there; 0
            otherwise.
    """

    payload: bytes = b""
    staying_bytes: int = 0


class Reply(Protocol):
    """Takes what becomes of a request to a worker; a `Future` is one.

    Functions whose ends are only taken note of have a lighter one.
    """

    def set_running_or_notify_cancel(self) -> object:
        """Take note that it has begun."""

    def set_result(self, answer: ClosureAnswer, /) -> None:
        """Take the answer."""

    def set_exception(self, error: BaseException, /) -> None:
        """Take note of why there is none."""


class RemoteTraceback(Exception):
    """Where a function on a worker raised; printed above the error itself."""

    def __init__(self, worker: str, closure: str, traceback: str) -> None:
        super().__init__(f"\n\n{closure} on {worker}:\n\n{traceback}")


class FailureKind(Enum):
    """Why a function has no result."""

    FUNCTION = pb.FAILURE_KIND_FUNCTION
    """It raised an exception, or returned what cannot be sent."""
    INPUT = pb.FAILURE_KIND_INPUT
    """It could not be loaded, or what it uses could not."""
    CANCELLED = pb.FAILURE_KIND_CANCELLED
    """It was given up."""


class ClosureFailure(Exception):
    """A worker could not return the result of a function.

    Attributes:
        kind: Why.
        exception: What was raised there, with its class; `WorkerFunctionError` where that class
            does not travel.
        traceback: Where it was raised, as Python prints it.
    """

    def __init__(self, kind: FailureKind, exception: BaseException, traceback: str) -> None:
        words = words_of(exception)
        super().__init__(f"{type(exception).__name__}: {words}\n\n{traceback}")
        self.kind = kind
        self.exception = exception
        self.traceback = traceback


def failure_of(message: pb.Failure, task: str, outcomes: OutcomeForm) -> ClosureFailure:
    """Return what a worker's message stands for; raise `ValueError` if it is of no kind."""
    exception = outcomes.exception_of(message, task)
    return ClosureFailure(FailureKind(message.kind), exception, message.traceback)
