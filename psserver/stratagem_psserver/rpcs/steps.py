"""The RPCs of synchronous steps: workers begin them, contribute to them, and complete ones run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from stratagem_proto.errors import DeadlineExceededError, InvalidArgumentError, StratagemError
from stratagem_proto.v1 import closed_step_pb2, consistency_pb2
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.closed_step_pb2 import GlobalNorm
from stratagem_proto.v1.parameter_server_service_pb2 import DESCRIPTOR as SERVICE_FILE
from stratagem_proto.wire.status import from_record, to_record
from stratagem_psserver.environment import TENSOR_BYTES
from stratagem_psserver.exactly_once.receiving import StagedTensors
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.optimization.gradients import Gradient, gather, require_distinct
from stratagem_psserver.optimization.optimizers import ReadyStep
from stratagem_psserver.state import ServerState
from stratagem_psserver.synchronous.contributions import (
    Part,
    closed_total,
    finished_total,
    limited_total,
    limits_of,
)
from stratagem_psserver.variables.locks import LockUse
from stratagem_psserver.waiting import Waiter
from stratagem_rpc.serving.access import Access


def all_gradients(
    state: ServerState, header: pb.UpdateHeader, staged: StagedTensors
) -> list[Gradient]:
    """Return the gradients that were kept for a request, followed by its own.

    Raises:
        AbortedError: The gradients that were kept are gone.
    """
    gradients = gather(state.store, header.gradients, staged.tensors)
    if not header.HasField("backward"):
        return gradients
    kept = state.kept.get(staged.session.id, header.backward).gradients
    require_distinct(gradients, kept)
    return [*kept.values(), *gradients]


async def run_step(state: ServerState, step: ReadyStep) -> list[int]:
    """Run a step of an optimizer and return the new versions of its variables."""
    size = step.nbytes + len(step.variables) * TENSOR_BYTES
    await state.compute.run(step.run, size)
    return state.optimizers.commit(step)


_SERVICE = SERVICE_FILE.services_by_name["ParameterServerService"]

# Other requests may ask for the permits that BeginStep gives.
_BEGIN_STEP = Access(_SERVICE.methods_by_name["BeginStep"])


class ConsistencyRpcs:
    """BeginStep, SetConsistency and DescribeConsistency."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def begin(
        self, request: consistency_pb2.BeginStepRequest
    ) -> consistency_pb2.BeginStepResponse:
        state = self._state
        session = state.session(request.session_id)
        report_inputs(state, session, request.inputs)
        _arrive(state, session, request.steps)
        deadline = state.clock() + request.wait_seconds
        grants = [
            await self._granted(session, step, deadline - state.clock()) for step in request.steps
        ]
        return consistency_pb2.BeginStepResponse(grants=grants)

    async def _granted(
        self, session: Session, step: consistency_pb2.StepBegin, seconds: float
    ) -> consistency_pb2.StepGrant:
        state, name = self._state, step.group
        if granted := _granted_now(state, step):
            return granted

        def grant() -> consistency_pb2.StepGrant | None:
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

    async def change(
        self, request: consistency_pb2.SetConsistencyRequest
    ) -> consistency_pb2.SetConsistencyResponse:
        return await self._state.mutations.once(
            request, partial(self._change, request), consistency_pb2.SetConsistencyResponse
        )

    async def _change(
        self, request: consistency_pb2.SetConsistencyRequest, session: Session
    ) -> consistency_pb2.SetConsistencyResponse:
        state = self._state
        step = state.clocks.change(request.group, request.consistency)
        # Workers that wait to begin a step may get a permit under the new consistency.
        state.clocks_changed([request.group])
        return consistency_pb2.SetConsistencyResponse(step=step)

    async def describe(
        self, request: consistency_pb2.DescribeConsistencyRequest
    ) -> consistency_pb2.DescribeConsistencyResponse:
        self._state.session(request.session_id)
        groups = self._state.clocks.report()
        for group in groups:
            group.completed = self._state.rounds.closed(group.group)
        committed = [
            consistency_pb2.CommittedStep(group=group, worker=worker, step=step)
            for group, worker, step in self._state.rounds.committed()
        ]
        return consistency_pb2.DescribeConsistencyResponse(groups=groups, committed=committed)


def begun_now(
    state: ServerState, session: Session, steps: Sequence[consistency_pb2.StepBegin]
) -> list[consistency_pb2.StepGrant]:
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


def report_inputs(
    state: ServerState, session: Session, inputs: Sequence[consistency_pb2.InputDigest]
) -> None:
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


def _arrive(
    state: ServerState, session: Session, steps: Iterable[consistency_pb2.StepBegin]
) -> None:
    """Note the steps that a worker wants to begin."""
    for step in steps:
        closed = state.rounds.closed(step.group)
        if state.changes.log is not None:
            state.changes.arrived(session.id, step, closed)
        if state.clocks.arrive(step, session, closed):
            state.clocks_changed([step.group])


def _granted_now(
    state: ServerState, step: consistency_pb2.StepBegin
) -> consistency_pb2.StepGrant | None:
    """Return the permit for a step; None while its worker has to wait."""
    closed = state.rounds.closed(step.group)
    granted = state.clocks.grant(step.group, step.worker, closed)
    if granted is not None:
        if state.changes.log is not None:
            state.changes.permitted(step, closed, granted.step)
        granted.closed = state.rounds.awaited(step.group)
    return granted


async def close(state: ServerState, mark: pb.StepMark, parts: Sequence[Part], use: LockUse) -> None:
    """Apply the sum of a step, or keep it until the norm of all servers' sums is known."""
    with _ending_on_failure(state, mark, parts):
        nbytes = sum(part.reservation.nbytes for part in parts)
        if parts[0].contribution.global_norm:
            closed = await state.compute.run(partial(closed_total, parts), nbytes)
            state.rounds.keep(mark.group, closed)
            state.groups_changed([mark.group])
            return
        names = [name for part in parts for name in part.gradients]
        async with state.changing(names, use):
            totalling = partial(limited_total, parts)
            gradients = await state.compute.run(totalling, nbytes)
            await _apply(state, mark, parts[0], gradients)
    _end(state, mark, parts)


async def finish(state: ServerState, mark: pb.StepMark, norm: GlobalNorm, use: LockUse) -> None:
    """Apply a step that waits for this norm, unless it was applied before."""
    unfinished = state.rounds.unfinished(mark.group)
    waiting = unfinished.find(mark.step)
    async with state.changing(waiting.variables if waiting else [], use):
        # Another worker may have sent the same norm meanwhile.
        closed = unfinished.take(mark.step, norm)
        if closed is None:
            return
        with _ending_on_failure(state, mark, closed.parts):
            scaling = partial(finished_total, closed, norm)
            nbytes = sum(each.value.nbytes for each in closed.gradients)
            gradients = await state.compute.run(scaling, nbytes)
            await _apply(state, mark, closed.parts[0], gradients)
        _end(state, mark, closed.parts)


async def _apply(
    state: ServerState, mark: pb.StepMark, part: Part, gradients: Sequence[Gradient] | None
) -> None:
    if gradients is None:
        state.rounds.reject(mark)
    else:
        await run_step(state, state.optimizers.prepare(part.program, gradients))


@contextmanager
def _ending_on_failure(
    state: ServerState, mark: pb.StepMark, parts: Sequence[Part]
) -> Iterator[None]:
    """End a step if the block fails."""
    try:
        yield
    except BaseException as error:
        _end(state, mark, parts, from_record(to_record(error)))
        raise


def _end(
    state: ServerState,
    mark: pb.StepMark,
    parts: Sequence[Part],
    failure: StratagemError | None = None,
) -> None:
    for part in parts:
        part.reservation.release()
    state.rounds.finish(mark, failure)
    state.groups_changed([mark.group])


async def stage_contribution(
    state: ServerState, header: pb.UpdateHeader, staged: StagedTensors
) -> None:
    """Keep a worker's contribution to a step; no variable changes yet."""
    use = LockUse(staged.session.label, "contribution")
    async with state.deciding(header.contribution.step.group, use):
        program, limits = header.program.optimizer, limits_of(header)
        gradients = all_gradients(state, header, staged)
        # A step that cannot be taken is this worker's mistake, so the error goes to this worker.
        state.optimizers.prepare(program, gradients)
        reservation, records = staged.reservation.hand_over(), [state.changes.present]
        if header.HasField("backward"):
            kept = state.kept.get(staged.session.id, header.backward)
            reservation.absorb(kept.reservation)
            records = [*kept.records, *records]
        part = Part(
            session_id=staged.session.id,
            task=staged.session.label,
            contribution=header.contribution,
            program=program,
            gradients={gradient.variable: gradient for gradient in gradients},
            reservation=reservation,
            records=records,
            limits=limits,
            nonfinite_variable=header.nonfinite_variable,
        )
        try:
            state.rounds.stage(part)
        except Exception:
            part.reservation.release()
            raise


class ContributionRpcs:
    """CommitContribution, ListClosedSteps and FinishStep."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def commit(self, request: pb.CommitContributionRequest) -> pb.CommitContributionResponse:
        await self._wait_for_others(request)
        return await self.commit_now(request)

    async def commit_now(
        self, request: pb.CommitContributionRequest
    ) -> pb.CommitContributionResponse:
        """Commit without waiting for anybody, as a request of a log that has waited before."""
        apply = partial(self._commit, request.step, request.predecessors)
        return await self._state.mutations.once(request, apply, pb.CommitContributionResponse)

    async def _wait_for_others(self, request: pb.CommitContributionRequest) -> None:
        """Wait until those have committed whose contributions to the step were dropped."""
        state, key, mark = self._state, request.key, request.step
        session = state.ledger.known(state.ledger.verify_caller(key.session_id))
        if session is None or session.numbering.outcome(key):
            return
        if request.predecessors:
            ready = partial(state.rounds.may_commit_left, session.label, mark)
        else:
            ready = partial(state.rounds.may_commit, session.id, mark)
        waiter = state.step_waiter(session, mark)
        subject = "group", mark.group
        if not await state.waits.until(subject, ready, request.wait_seconds, waiter):
            raise DeadlineExceededError(
                f"{session.label} could not commit to step {mark.step} of {mark.group!r} in "
                f"{request.wait_seconds:g} s: contributions of workers that had ended were "
                f"dropped, and {state.rounds.missing(mark)}. It waits for {state.explained(waiter)}"
            )

    async def _commit(
        self, mark: pb.StepMark, predecessors: bool, session: Session
    ) -> pb.CommitContributionResponse:
        use, rounds = LockUse(session.label, f"step {mark.step}"), self._state.rounds
        async with self._state.deciding(mark.group, use):
            if rounds.is_late(session.id, mark):
                self._state.clocks.count_dropped(mark.group, session.id)
                return pb.CommitContributionResponse(dropped=True)
            if predecessors:
                parts = rounds.commit_left(session.label, mark)
            else:
                parts = rounds.commit(session.id, session.label, mark)
            if parts:
                await close(self._state, mark, parts, use)
        self._state.groups_changed([mark.group])
        return pb.CommitContributionResponse()

    async def list_closed(
        self, request: closed_step_pb2.ListClosedStepsRequest
    ) -> closed_step_pb2.ListClosedStepsResponse:
        state = self._state
        mark = pb.StepMark(group=request.group, step=request.step)
        session = state.session(request.session_id)
        # A caller that does not wait only wants the list, and is not told of failed steps.
        if request.wait_seconds:
            closed = partial(state.rounds.has_closed, mark, session.id)
            subject, waiter = ("group", mark.group), state.step_waiter(session, mark)
            await state.waits.until(subject, closed, request.wait_seconds, waiter)
        shares = state.rounds.unfinished(mark.group).shares(mark.step)
        return closed_step_pb2.ListClosedStepsResponse(steps=shares)

    async def finish(
        self, request: closed_step_pb2.FinishStepRequest
    ) -> closed_step_pb2.FinishStepResponse:
        return await self._state.mutations.once(
            request, partial(self._finish, request), closed_step_pb2.FinishStepResponse
        )

    async def _finish(
        self, request: closed_step_pb2.FinishStepRequest, session: Session
    ) -> closed_step_pb2.FinishStepResponse:
        mark = pb.StepMark(group=request.group, step=request.step)
        use = LockUse(session.label, f"step {mark.step}")
        async with self._state.deciding(request.group, use):
            await finish(self._state, mark, request.norm, use)
        return closed_step_pb2.FinishStepResponse()
