"""Applying synchronous steps that are complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from stratagem_proto.errors import StratagemError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.closed_step_pb2 import GlobalNorm
from stratagem_proto.wire.status import from_record, to_record
from stratagem_psserver.optimization.gradients import Gradient
from stratagem_psserver.rpcs.steps import run_step
from stratagem_psserver.state import ServerState
from stratagem_psserver.synchronous.contributions import (
    Part,
    closed_total,
    finished_total,
    limited_total,
)
from stratagem_psserver.variables.locks import LockUse


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
