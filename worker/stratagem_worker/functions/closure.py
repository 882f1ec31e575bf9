"""Running one function, and the messages that report outcomes."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from itertools import takewhile

from stratagem._ps_client.write_behind import Line, SentWrite
from stratagem._shipping.classes import words_of
from stratagem._shipping.loader import Loader
from stratagem._shipping.outcome_forms import PLAIN, OutcomeForm
from stratagem_proto.errors import CancelledError
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_worker.functions.interruption import Interrupted


def run_closure(order: pb.Run, payload: bytes, loader: Loader) -> pb.Finished:
    """Load a function, call it, and return the outcome."""
    kind: pb.FailureKind = pb.FAILURE_KIND_INPUT
    try:
        function = loader.load(payload)
        kind = pb.FAILURE_KIND_FUNCTION
        result = function()
        if order.keep_as:
            loader.keep(order.keep_as, result)
            return pb.Finished(closure=order.closure)
        if order.use == pb.RESULT_USE_NONE:
            return pb.Finished(closure=order.closure)
        return pb.Finished(closure=order.closure, payload=loader.outcomes.dump(result))
    except Interrupted:
        raise
    except BaseException as error:  # also SystemExit: a function does not end a worker
        return failed(order.closure, kind, error, loader.outcomes)


def cancelled(closure: int, worker: str) -> pb.Finished:
    """Return the outcome of a function that was given up."""
    error = CancelledError(f"the function was given up on {worker}", task=worker)
    return failed(closure, pb.FAILURE_KIND_CANCELLED, error, PLAIN)


def failed(
    closure: int, kind: pb.FailureKind, error: BaseException, outcomes: OutcomeForm
) -> pb.Finished:
    """Return the outcome of a function that raised an exception."""
    # The first frame is `run_closure` above.
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    lines = traceback.format_exception(type(error), error, frames)
    return _failed(closure, kind, error, lines, outcomes)


def write_failed(closure: int, write: SentWrite) -> pb.Finished:
    """Return the outcome of a function of which a write has failed afterwards."""
    error = write.error
    assert error is not None, "the write has not failed"
    lines = [
        "Traceback (most recent call last):\n",
        *traceback.format_list(_stack(write.lines)),
        *traceback.format_exception_only(type(error), error),
    ]
    return _failed(closure, pb.FAILURE_KIND_FUNCTION, error, lines, PLAIN)


def _stack(lines: Sequence[Line]) -> list[traceback.FrameSummary]:
    called = takewhile(lambda line: line[0] != __file__, lines)
    return [traceback.FrameSummary(*line) for line in called][::-1]


def _failed(
    closure: int,
    kind: pb.FailureKind,
    error: BaseException,
    lines: Sequence[str],
    outcomes: OutcomeForm,
) -> pb.Finished:
    failure = pb.Failure(
        kind=kind,
        class_name=type(error).__qualname__,
        message=words_of(error),
        traceback="".join(lines),
    )
    outcomes.tell(error, failure)
    return pb.Finished(closure=closure, failure=failure)
