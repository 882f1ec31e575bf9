"""Calls come out the same on the other side of a pickle, or say why they cannot."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NoReturn

import cloudpickle
import pytest

from stratagem_deploy.clusters.call import Outcome, WorkerCall
from stratagem_proto.errors import AbortedError, InvalidTypeError


class TwoPartError(Exception):
    """Pickles well and cannot be read again: `args` has one part only."""

    def __init__(self, part: str, other: str) -> None:
        super().__init__(part + other)


def leave() -> NoReturn:
    raise SystemExit(3)


def interrupt() -> NoReturn:
    raise KeyboardInterrupt


def raise_two_parts() -> NoReturn:
    raise TwoPartError("one, ", "two")


def sent(function: Callable[..., Any], *arguments: Any) -> Outcome:
    """Makes a call as another process would, and takes what it sends back."""
    call: WorkerCall = cloudpickle.loads(WorkerCall(function, arguments).to_bytes())
    outcome: Outcome = cloudpickle.loads(call.outcome().to_bytes())
    return outcome


def test_a_result_comes_back() -> None:
    captured = 2
    outcome = sent(lambda x, y: captured * (x + y), 1, 2)
    assert outcome.result_of("worker", 0) == 6


def test_an_error_keeps_its_type_and_gets_the_task_as_its_cause() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        sent(lambda: 1 // 0).result_of("worker", 3)
    cause = raised.value.__cause__
    assert isinstance(cause, AbortedError)
    assert cause.task == "/job:worker/task:3"
    assert "worker:3 failed" in str(cause)
    assert "1 // 0" in str(cause)


@pytest.mark.parametrize("function", [leave, interrupt])
def test_what_would_end_the_caller_becomes_an_error(
    function: Callable[[], NoReturn],
) -> None:
    with pytest.raises(AbortedError, match="the function ended with"):
        sent(function).result_of("worker", 0)


def test_a_result_that_cannot_be_sent_is_an_error_that_says_so() -> None:
    with pytest.raises(InvalidTypeError, match="a lock, which cannot be sent back"):
        sent(threading.Lock).result_of("worker", 0)


def test_an_error_that_cannot_be_sent_comes_as_text_with_its_traceback() -> None:
    with pytest.raises(AbortedError, match="TwoPartError: one, two") as raised:
        sent(raise_two_parts).result_of("worker", 0)
    assert "in raise_two_parts" in str(raised.value.__cause__)
