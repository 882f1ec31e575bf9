"""Outcomes of closures, and what of them the user sees."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from stratagem._coordinator.closure import Closure
from stratagem._coordinator.workers.remote_worker import RemoteWorker
from stratagem._shipping.classes import words_of
from stratagem._shipping.parcel import Parcel
from stratagem._worker_client.closure_failure import (
    ClosureAnswer,
    ClosureFailure,
    FailureKind,
    RemoteTraceback,
)
from stratagem_proto.errors import (
    AbortedError,
    CancelledError,
    ClosureInputError,
    PSUnavailableError,
    UnavailableError,
    WorkerLostError,
)


class RunOutcome(NamedTuple):
    """The outcome of one run of a closure on a worker.

    Attributes:
        answer: The result, if it has one.
        error: What is raised for it, if it failed.
        gave_up: Whether the worker gave it up because it was asked to.
        lacking: Whether it did not run, because the worker could not have a result of another
            closure from the worker that has it.
        lost: Whether the worker was lost. Spec: FLT-1.
    """

    answer: ClosureAnswer = ClosureAnswer()
    error: BaseException | None = None
    gave_up: bool = False
    lacking: bool = False
    lost: bool = False


def outcome_of_failure(
    failure: BaseException, worker: RemoteWorker, closure: Closure
) -> RunOutcome:
    """Return the outcome of a run without a result."""
    if not isinstance(failure, ClosureFailure):
        return RunOutcome(lost=True)
    if failure.kind is FailureKind.CANCELLED:
        return RunOutcome(gave_up=True)
    try:
        return _failed(failure, worker, closure)
    except Exception as error:
        # Classes of exceptions are the user's. A closure ends whatever they do.
        return RunOutcome(error=error)


def result_of(future: Future[ClosureAnswer], worker: RemoteWorker, call: Parcel) -> bytes:
    """Wait for what is no closure, and return its result."""
    try:
        return future.result().payload
    except ClosureFailure as failure:
        raise _original(worker.failure_of_input(call) or failure) from failure


def _failed(failure: ClosureFailure, worker: RemoteWorker, closure: Closure) -> RunOutcome:
    error = _seen(failure, worker, closure)
    if _is_lack(error):
        return RunOutcome(lacking=True)
    cause = RemoteTraceback(worker.name, closure.name, failure.traceback)
    # Frozen dataclasses let nobody set an attribute by their own means.
    object.__setattr__(error, "__cause__", cause)
    return RunOutcome(error=error)


def _seen(failure: ClosureFailure, worker: RemoteWorker, closure: Closure) -> BaseException:
    error = failure.exception
    if failure.kind is FailureKind.INPUT:
        cause = worker.failure_of_input(closure.parcel)
        return input_failure(closure, error if cause is None else _original(cause))
    if isinstance(error, UnavailableError) and "/job:ps" in (error.task or str(error)):
        return PSUnavailableError(str(error), task=error.task)
    return error


def _is_lack(error: BaseException) -> bool:
    return isinstance(error, ClosureInputError) and isinstance(
        error.original_exception, WorkerLostError
    )


def _original(error: BaseException) -> BaseException:
    return error.exception if isinstance(error, ClosureFailure) else error


def input_failure(closure: Closure, error: BaseException) -> ClosureInputError:
    """Return the error of a closure that lacks something that it takes. Spec: ERR-9."""
    if isinstance(error, ClosureInputError):
        return error
    found = ClosureInputError(
        f"{closure.name} was not run, because an input of it failed: "
        f"{type(error).__name__}: {words_of(error)}"
    )
    found.original_exception = error
    return found


def deadly(closure: Closure, workers: Sequence[int]) -> AbortedError:
    """Return the error of a closure that is not run again after it lost these workers."""
    names = ", ".join(f"/job:worker/task:{worker}" for worker in workers)
    return AbortedError(
        f"{closure.name} is not run again: workers that had it were lost, "
        f"{len(workers)} one after the other ({names}). It may end their process, for "
        "want of memory or by a fault outside of Python: see what they wrote last, and "
        "run it in a process of its own. If workers are lost for other reasons, give "
        "the ClusterCoordinator a larger max_worker_losses, or None"
    )


def cancellation() -> CancelledError:
    """Return the error that waiting for a cancelled closure raises. Spec: ERR-4."""
    return CancelledError(
        "The corresponding function is cancelled. Please reschedule the function: "
        "another one failed before it ended"
    )
