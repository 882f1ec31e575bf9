"""How calls have ended on hosts, as hosts tell it and as the program believes it."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from stratagem._shipping.classes import words_of
from stratagem._shipping.outcome_forms import OutcomeForm
from stratagem._worker_client.closure_failure import RemoteTraceback
from stratagem_proto.errors import (
    AbortedError,
    DeadlineExceededError,
    MalformedStreamError,
    UnavailableError,
    WorkerFunctionError,
)
from stratagem_proto.v1 import worker_pb2 as pb

OUT_OF_STEP = (AbortedError, DeadlineExceededError, UnavailableError)
"""Errors after which hosts do not know what the others do."""

Parts: TypeAlias = tuple[Any, ...]
"""What an object is made of that travels without pickle."""


def malformed(sender: str, why: str) -> MalformedStreamError:
    """Return that a host has told what none could tell."""
    return MalformedStreamError(
        f"{sender} returned what no host of this program could have returned: {why}. Another "
        "program may have its address, or somebody may have taken it over: stop it and look at its "
        "host",
        task=sender,
    )


def failure_of(error: BaseException, outcomes: OutcomeForm) -> pb.Failure:
    """Return an exception as a host tells it."""
    failure = pb.Failure(
        kind=pb.FAILURE_KIND_FUNCTION,
        class_name=type(error).__qualname__,
        message=words_of(error),
        traceback="".join(traceback.format_exception(error)),
    )
    outcomes.tell(error, failure)
    return failure


@dataclass(frozen=True)
class HostAnswer:
    """How a call has ended on one host.

    Attributes:
        result: What the work returned, in the form of outcomes; empty if it raised.
        failure: What it raised; None if it returned.
        in_step: Whether the host can go on with the others.
        values: The values that have changed, by position in the call's `state`; of the first host.
        buffers: The buffers of modules, by position in the call's `modules` and by key; likewise.
    """

    result: bytes
    failure: pb.Failure | None
    in_step: bool
    values: Mapping[int, torch.Tensor]
    buffers: Mapping[tuple[int, str], torch.Tensor]

    def parts(self) -> Parts:
        """Return what it is made of; see `of`."""
        failure = b"" if self.failure is None else self.failure.SerializeToString()
        buffers = [(*place, buffer) for place, buffer in self.buffers.items()]
        return self.result, failure, self.in_step, dict(self.values), buffers

    @classmethod
    def of(cls, parts: Any, sender: str) -> HostAnswer:
        """Return an answer that `parts` has told.

        Raises:
            MalformedStreamError: It is no such answer.
        """
        kinds = bytes, bytes, bool, dict, list
        if not _are(parts, kinds):
            raise malformed(sender, "an answer of other parts")
        result, failed, in_step, values, buffers = parts
        if not all(_are(pair, (int, torch.Tensor)) for pair in values.items()):
            raise malformed(sender, "values that are no tensors of variables")
        if not all(_are(each, (int, str, torch.Tensor)) for each in buffers):
            raise malformed(sender, "buffers that are no tensors of modules")
        named = {(position, key): buffer for position, key, buffer in buffers}
        return cls(result, _failure(failed, sender), in_step, values, named)


def _are(parts: Any, kinds: Sequence[type]) -> bool:
    """Return whether there are as many parts, each of its kind."""
    if type(parts) is not tuple or len(parts) != len(kinds):
        return False
    return all(map(_is_a, parts, kinds))


def _is_a(part: Any, kind: type) -> bool:
    # True and False are numbers to Python.
    return isinstance(part, kind) and (type(part) is bool) is (kind is bool)


def _failure(told: bytes, sender: str) -> pb.Failure | None:
    try:
        return pb.Failure.FromString(told) if told else None
    except Exception as error:
        raise malformed(sender, "an error that cannot be read") from error


def texts(value: Any, sender: str) -> list[str]:
    """Return the names that a host has told; raise `MalformedStreamError` if they are none."""
    if not isinstance(value, list | tuple) or not all(type(each) is str for each in value):
        raise malformed(sender, "something else than names")
    return list(value)


def slots_of(value: Any, count: int, sender: str) -> list[Mapping[str, torch.Tensor]]:
    """Return the state of an optimizer for so many variables, as a host has told it.

    Raises:
        MalformedStreamError: It is something else.
    """
    if type(value) is not list or len(value) != count or not all(map(_is_state, value)):
        raise malformed(sender, "something else than the state of an optimizer")
    return value


def _is_state(value: Any) -> bool:
    return isinstance(value, dict) and all(
        type(key) is str and isinstance(each, torch.Tensor) for key, each in value.items()
    )


@dataclass(frozen=True)
class _Failed:
    task: int
    error: BaseException
    traceback: str

    @property
    def tells_of_others(self) -> bool:
        """Whether it is an error of the host because of what another one does."""
        is_stand_in = isinstance(self.error, WorkerFunctionError)
        return isinstance(self.error, OUT_OF_STEP) and not is_stand_in


def raised_by(
    answers: Sequence[HostAnswer], tasks: Sequence[int], outcomes: OutcomeForm
) -> BaseException | None:
    """Return the error of a call, caused by its traceback; None if all went well.

    An error of a host itself comes before one that tells of another host.
    """
    failed = [
        _Failed(
            task, outcomes.exception_of(answer.failure, f"host {task}"), answer.failure.traceback
        )
        for answer, task in zip(answers, tasks, strict=True)
        if answer.failure is not None
    ]
    if not failed:
        whole = all(answer.in_step for answer in answers)
        return None if whole else UnavailableError("a host has left the others")
    first = next((one for one in failed if not one.tells_of_others), failed[0])
    first.error.__cause__ = RemoteTraceback(f"host {first.task}", "a call", first.traceback)
    return first.error
