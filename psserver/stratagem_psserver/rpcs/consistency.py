"""The RPCs by which workers begin steps, and by which a group's consistency changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from stratagem_proto.errors import DeadlineExceededError, InvalidArgumentError
from stratagem_proto.serving.access import Access
from stratagem_proto.v1 import consistency_pb2 as pb
from stratagem_proto.v1.parameter_server_service_pb2 import DESCRIPTOR as SERVICE_FILE
from stratagem_psserver.exactly_once.session import Session
from stratagem_psserver.state import ServerState
from stratagem_psserver.waiting import Waiter

_SERVICE = SERVICE_FILE.services_by_name["ParameterServerService"]

# Other requests may ask for the permits that BeginStep gives.
_BEGIN_STEP = Access(_SERVICE.methods_by_name["BeginStep"])


class ConsistencyRpcs:
    """BeginStep, SetConsistency and DescribeConsistency."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def begin(self, request: pb.BeginStepRequest) -> pb.BeginStepResponse:
        state = self._state
        session = state.session(request.session_id)
        report_inputs(state, session, request.inputs)
        _arrive(state, session, request.steps)
        deadline = state.clock() + request.wait_seconds
        grants = [
            await self._granted(session, step, deadline - state.clock()) for step in request.steps
        ]
        return pb.BeginStepResponse(grants=grants)

    async def _granted(self, session: Session, step: pb.StepBegin, seconds: float) -> pb.StepGrant:
        state, name = self._state, step.group
        if granted := _granted_now(state, step):
            return granted

        def grant() -> pb.StepGrant | None:
            state.inputs.require_alike(session)
            return _granted_now(state, step)

        subject = f"the permit for step {step.finished + 1} of {name!r}"
        waiter = Waiter(session.label, subject, partial(state.clocks.awaited, name, state.task_of))
        granted = await state.waits.until(("clock", name), grant, seconds, waiter)
        if granted is None:
            raise DeadlineExceededError(
                f"a step of {name!r} could not begin in time: "
                f"{state.clocks.explain_wait(name, step.worker)}. It waits for "
                f"{state.explained(waiter)}; see that the others train, or set a consistency "
                "that allows more"
            )
        return granted

    async def change(self, request: pb.SetConsistencyRequest) -> pb.SetConsistencyResponse:
        return await self._state.mutations.once(
            request, partial(self._change, request), pb.SetConsistencyResponse
        )

    async def _change(
        self, request: pb.SetConsistencyRequest, session: Session
    ) -> pb.SetConsistencyResponse:
        state = self._state
        step = state.clocks.change(request.group, request.consistency)
        # Workers that wait to begin a step may get a permit under the new consistency.
        state.clocks_changed([request.group])
        return pb.SetConsistencyResponse(step=step)

    async def describe(
        self, request: pb.DescribeConsistencyRequest
    ) -> pb.DescribeConsistencyResponse:
        self._state.session(request.session_id)
        groups = self._state.clocks.report()
        for group in groups:
            group.completed = self._state.rounds.closed(group.group)
        return pb.DescribeConsistencyResponse(groups=groups)


def begun_now(
    state: ServerState, session: Session, steps: Sequence[pb.StepBegin]
) -> list[pb.StepGrant]:
    """Return permits for all of these steps; an empty list if one of them has to wait.

    Raises:
        PermissionDeniedError: The role of the session may begin no steps.
    """
    if steps:
        _BEGIN_STEP.require(session)
    _arrive(state, session, steps)
    grants = [_granted_now(state, step) for step in steps]
    found = [grant for grant in grants if grant is not None]
    return found if len(found) == len(grants) else []


def report_inputs(state: ServerState, session: Session, inputs: Sequence[pb.InputDigest]) -> None:
    """Compare what a worker has read with what the others have, and let those know that wait.

    Raises:
        InvalidArgumentError: They differ.
        PermissionDeniedError: The role of the session reads nothing with others.
    """
    if inputs:
        _BEGIN_STEP.require(session)
    try:
        state.inputs.report(session, inputs)
    except InvalidArgumentError:
        state.waits.all_changed()
        raise


def _arrive(state: ServerState, session: Session, steps: Iterable[pb.StepBegin]) -> None:
    """Note the steps that a worker wants to begin."""
    for step in steps:
        closed = state.rounds.closed(step.group)
        state.changes.arrived(session.id, step, closed)
        if state.clocks.arrive(step, session, closed):
            state.clocks_changed([step.group])


def _granted_now(state: ServerState, step: pb.StepBegin) -> pb.StepGrant | None:
    """Return the permit for a step; None while its worker has to wait."""
    closed = state.rounds.closed(step.group)
    granted = state.clocks.grant(step.group, step.worker, closed)
    if granted is not None:
        state.changes.permitted(step, closed, granted.step)
        granted.closed = state.rounds.awaited(step.group)
    return granted
