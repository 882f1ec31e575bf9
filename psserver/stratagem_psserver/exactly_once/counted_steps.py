"""The steps that programs count, so that a task that is started again goes on where it was.

A task may end at any point of a step. Its next process repeats the last step that it had begun, and
what of that was applied here is recognised by its number among the requests of the step. So a step
that changes several servers is applied once on each of them, wherever it broke off. This module is
pure.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from google.protobuf.message import Message

from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.checkpoint_pb2 import TaskPosition
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF, ROLE_WORKER, CountedStep
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_SET, AssignHeader
from stratagem_psserver.checkpoint_gate import check_report
from stratagem_psserver.exactly_once.numbering import intent_of
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.log.changes import Mutation

# A push in flight may belong to the step before the one that its worker has begun.
_STEPS = 2

# The records of one step. They are replaced by those of the next one.
MAX_RECORDS = 65_536
MAX_RECORD_BYTES = 4 << 20

# As many tasks as there can be sessions.
_MOST_TASKS = 65_536

Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True)
class _Record:
    """A request that was applied: what it did, and the encoded answer."""

    intent: str
    response: bytes


@dataclass
class _Step:
    number: int
    report: bytes
    records: dict[int, _Record] = field(default_factory=dict)
    nbytes: int = 0


@dataclass
class _Task:
    """What is known of a task in the present run.

    Attributes:
        steps: The last steps that it has begun, the later one last.
        uncounted: Whether it has changed variables outside of counted steps.
        trained: Whether it has done so other than by setting them.
    """

    steps: list[_Step] = field(default_factory=list)
    uncounted: bool = False
    trained: bool = False


class CountedSteps:
    """How far each task of the cluster has come, and what was applied of its last steps."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, _Task] = OrderedDict()

    async def once(
        self,
        session: Session,
        request: Mutation,
        apply: Callable[[], Awaitable[Response]],
        response_type: type[Response],
    ) -> Response:
        """Apply a request whose turn it is, or answer as when an earlier process sent it.

        Raises:
            FailedPreconditionError: The step is repeated, and does not do the same.
            ResourceExhaustedError: The step has more requests than are remembered.
        """
        self.begin(session, request)
        counted = request.key.counted
        step = self._step(session, counted)
        if step is None:
            response = await apply()
            self.applied(session, request, b"")
            return response
        known = step.records.get(counted.ordinal)
        if known is not None:
            if (now := _intent(request)) != known.intent:
                raise FailedPreconditionError(
                    f"{session.label} was started again and repeats step {counted.number}, and "
                    f"does not do the same: its change {counted.ordinal} of this server was "
                    f"{known.intent}, but now it is {now}. So that all is applied once, let what a "
                    "step of strategy.steps() changes, and in which order, depend on its number "
                    "and its data alone"
                )
            return response_type.FromString(known.response)
        if len(step.records) >= MAX_RECORDS or step.nbytes >= MAX_RECORD_BYTES:
            raise ResourceExhaustedError(
                f"step {step.number} of {session.label} has changed this server {counted.ordinal} "
                f"times, and {MAX_RECORDS} are remembered of a step, in {MAX_RECORD_BYTES} bytes; "
                "let strategy.steps() count shorter steps, such as one for each batch"
            )
        response = await apply()
        self.applied(session, request, response.SerializeToString())
        return response

    def begin(self, session: Session, request: Mutation) -> None:
        """Note that a task has begun the step that a request is a part of.

        Raises:
            InvalidArgumentError: A checkpoint could not contain its report.
        """
        if not _is_training_task(session):
            return
        counted = request.key.counted
        if not counted.number:
            return
        steps = self._task(session.label).steps
        if not steps or counted.number > steps[-1].number:
            if counted.report:
                check_report(session.label, counted.report)
            steps.append(_Step(counted.number, counted.report))
            del steps[:-_STEPS]

    def applied(self, session: Session, request: Mutation, response: bytes) -> None:
        """Note that a request was applied, after `begin`; `response` is its encoded answer."""
        counted = request.key.counted
        trains = isinstance(request, AssignHeader | pb.UpdateHeader | pb.CommitContributionRequest)
        if not counted.number and trains and _is_training_task(session):
            task = self._task(session.label)
            task.uncounted = True
            task.trained = task.trained or not _only_sets(request)
        step = self._step(session, counted)
        if step is not None:
            record = step.records[counted.ordinal] = _Record(_intent(request), response)
            step.nbytes += len(record.response) + len(record.intent)

    def _task(self, label: str) -> _Task:
        task = self._tasks.get(label)
        if task is None:
            task = self._tasks[label] = _Task()
            if len(self._tasks) > _MOST_TASKS:
                self._tasks.popitem(last=False)
        return task

    def _step(self, session: Session, counted: CountedStep) -> _Step | None:
        """Return the step whose requests are applied once; None for one that is applied each time.

        A push in flight that comes later than that is of a process that still runs, which sends
        nothing twice.
        """
        if not counted.ordinal or not _is_training_task(session):
            return None
        steps = self._task(session.label).steps
        return next((one for one in steps if one.number == counted.number), None)

    def restart(self, positions: Iterable[TaskPosition]) -> None:
        """Begin a run in which tasks are so far; `check_positions` has seen them."""
        self._tasks = OrderedDict(
            (one.task, _Task([_Step(one.number, one.report)])) for one in positions
        )

    def positions(self, label: str) -> Sequence[TaskPosition]:
        """Return the last steps that a task has begun, the later one last."""
        known = self._tasks.get(label)
        return [
            TaskPosition(task=label, number=step.number, report=step.report)
            for step in (known.steps if known else ())
        ]

    def has_uncounted(self, label: str) -> bool:
        """Return whether a task has changed variables in this run outside of counted steps."""
        known = self._tasks.get(label)
        return known is not None and known.uncounted

    def has_trained(self, label: str) -> bool:
        """Return whether a task has changed variables so other than by setting them."""
        known = self._tasks.get(label)
        return known is not None and known.trained

    def trained(self) -> list[str]:
        """Return the tasks that have trained in this run, sorted."""
        return sorted(label for label, task in self._tasks.items() if task.steps or task.trained)

    def facts(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {
            label: {
                "uncounted": task.uncounted,
                "trained": task.trained,
                "steps": [
                    [
                        step.number,
                        _text(step.report),
                        [[n, one.intent, _text(one.response)] for n, one in step.records.items()],
                    ]
                    for step in task.steps
                ],
            }
            for label, task in self._tasks.items()
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore what `facts` returned."""
        for label, item in facts.items():
            uncounted = item["uncounted"]
            # An earlier release did not tell one from the other.
            task = self._tasks[label] = _Task([], uncounted, item.get("trained", uncounted))
            for number, report, records in item["steps"]:
                known = {n: _Record(intent, b64decode(text)) for n, intent, text in records}
                step = _Step(number, b64decode(report), known)
                step.nbytes = sum(
                    len(one.response) + len(one.intent) for one in step.records.values()
                )
                task.steps.append(step)


def check_positions(positions: Sequence[TaskPosition]) -> None:
    """Check the positions that a restoration has, before it changes anything.

    Raises:
        InvalidArgumentError: There are more than tasks, or a report is not valid.
    """
    if len(positions) > _MOST_TASKS:
        raise InvalidArgumentError(
            f"a restoration has the positions of {len(positions)} tasks; at most {_MOST_TASKS} are "
            "kept"
        )
    for one in positions:
        if one.report:
            check_report(one.task, one.report)


def _is_training_task(session: Session) -> bool:
    # A worker server acts for its coordinator's program, whose functions are known by themselves.
    own = session.role == ROLE_CHIEF or not session.program
    return bool(session.task.job) and session.role in (ROLE_CHIEF, ROLE_WORKER) and own


def _only_sets(request: Mutation) -> bool:
    return isinstance(request, AssignHeader) and all(
        one.mode == ASSIGN_MODE_SET for one in request.assignments
    )


def _intent(request: Mutation) -> str:
    """Return what a request does, as far as it is the same when its step is repeated.

    Gradients of an optimizer's step may come in one request or in several.
    """
    if isinstance(request, pb.UpdateHeader) and request.program.HasField("optimizer"):
        return f"step of {request.program.optimizer.name!r}"
    return intent_of(request).summary


def _text(content: bytes) -> str:
    return b64encode(content).decode()
