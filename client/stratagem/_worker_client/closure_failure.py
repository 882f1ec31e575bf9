"""What a worker says of a function that has ended: its value, or why it failed."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from stratagem._shipping.classes import read_by_program, words_of
from stratagem_proto.errors import AbortedError, InvalidTypeError
from stratagem_proto.v1 import worker_pb2 as pb


class ClosureAnswer(NamedTuple):
    """The result of a function, or where it is.

    Attributes:
        payload: The pickled result; empty if it was kept, stays or was not wanted.
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
        exception: What was raised there, with its class; `AbortedError` with its words where it
            cannot be pickled there or loaded here, and why not.
        traceback: Where it was raised, as Python prints it.
    """

    def __init__(self, kind: FailureKind, exception: BaseException, traceback: str) -> None:
        words = words_of(exception)
        super().__init__(f"{type(exception).__name__}: {words}\n\n{traceback}")
        self.kind = kind
        self.exception = exception
        self.traceback = traceback


def failure_of(message: pb.Failure, task: str) -> ClosureFailure:
    """Return what a worker's message stands for."""
    return ClosureFailure(
        FailureKind(message.kind), _exception_of(message, task), message.traceback
    )


def _exception_of(message: pb.Failure, task: str) -> BaseException:
    if not message.exception:
        why = f"could not be pickled there ({message.pickling_error})"
        return _stand_in(message, task, why)
    try:
        return _loaded(message.exception)
    except Exception as error:
        why = f"cannot be loaded here ({type(error).__name__}: {words_of(error)})"
        return _stand_in(message, task, why)


def _loaded(pickled: bytes) -> BaseException:
    exception: object = read_by_program(pickled)
    if not isinstance(exception, BaseException):
        raise InvalidTypeError(f"its pickle holds a {type(exception).__name__}")
    return exception


def _stand_in(message: pb.Failure, task: str, why: str) -> AbortedError:
    return AbortedError(
        f"{task} raised {message.class_name}, which {why}: {message.message}", task=task
    )
