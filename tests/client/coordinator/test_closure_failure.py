"""Failures that workers report to a coordinator."""

from __future__ import annotations

import pickle

import pytest

from stratagem._shipping.outcome_forms import PICKLED
from stratagem._worker_client.wire import FailureKind, failure_of
from stratagem_proto.errors import WorkerFunctionError
from stratagem_proto.v1 import worker_pb2 as pb

TASK = "/job:worker/task:1"

# The pickle of a function that this process lacks.
FROM_ELSEWHERE = b"cno_such_module\nOwnError\n."


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (
            {"pickling_error": "TypeError: it holds a lock"},
            "could not be pickled there (TypeError: it holds a lock)",
        ),
        (
            {"exception": FROM_ELSEWHERE},
            "cannot be loaded here (ModuleNotFoundError: No module named 'no_such_module')",
        ),
        (
            {"exception": pickle.dumps("words")},
            "cannot be loaded here (InvalidTypeError: its pickle holds a str)",
        ),
    ],
    ids=["not pickled", "not loaded", "no exception"],
)
def test_an_exception_that_does_not_arrive_leaves_its_words_and_the_reason(
    sent: dict[str, object], why: str
) -> None:
    message = pb.Failure(kind=pb.FAILURE_KIND_FUNCTION, class_name="OwnError", message="the words")
    for field, value in sent.items():
        setattr(message, field, value)
    failure = failure_of(message, TASK, PICKLED)
    assert failure.kind is FailureKind.FUNCTION
    assert type(failure.exception) is WorkerFunctionError
    assert str(failure.exception) == f"{TASK} raised OwnError, which {why}: the words"
