"""Optimizer steps that servers carry out."""

from __future__ import annotations

from stratagem._core.enums import ReduceOp
from stratagem._gradients.step import OptimizerStep, VariableGradients
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.hosting.synchronous_steps import Staged
from stratagem._parameter_server.pushing.push import Push
from stratagem._parameter_server.pushing.server_batches import (
    OverlappedPush,
    ServerBatches,
    add_gradient,
    no_batches,
)
from stratagem._parameter_server.pushing.step_tracker import StepPermit
from stratagem._ps_client.requests import updates
from stratagem._ps_client.requests.updates import Limits
from stratagem_proto.v1.parameter_server_pb2 import Contribution, StepMark
from stratagem_proto.v1.update_program_pb2 import REDUCTION_MEAN, REDUCTION_SUM


def take(store: RemoteStore, step: OptimizerStep, overlap: OverlappedPush | None = None) -> bool:
    """Have the servers apply a step as its consistency says.

    On this worker's gradients now; or on those of all workers, when they have come.

    Args:
        store: The variables on the servers.
        step: The step.
        overlap: What has been sent of it.

    Returns:
        Whether the copies of what is stepped are fresh; otherwise they will be when the others have
        come.
    """
    # The answer to the push before may have the permit for this one.
    store.pushing.flush()
    store.contributions.end_interrupted()
    store.ends.require_fresh()
    permit = store.permit(step.optimizer)
    if permit.consistency._closes_steps:
        _contribute(store, step, permit, overlap)
        return False
    _push(store, step, permit, overlap)
    store.step_tracker.finish(step.optimizer, permit.step)
    return True


def _push(
    store: RemoteStore, step: OptimizerStep, permit: StepPermit, overlap: OverlappedPush | None
) -> None:
    limited = step.within_limits()
    if limited is None:
        return
    program, route = store.programs.encoded(step), store.routes.of(step)
    goes_as_it_is = overlap is None and step.compressor.compression is None
    updates = route.updates(program, limited) if goes_as_it_is else None
    if updates is None:
        batches = _batches(limited, overlap).items()
        updates = {server: batch.update(program) for server, batch in batches}
    awaited = overlap is not None
    store.pushing.apply(Push(step.optimizer, permit, updates, route.copies, awaited))


def _contribute(
    store: RemoteStore, step: OptimizerStep, permit: StepPermit, overlap: OverlappedPush | None
) -> None:
    """Add this worker's gradients to a step.

    Every server gets a part, if only an empty one, so that all come to the same steps; the parts
    count once all servers have theirs.
    """
    program, limits = store.programs.encoded(step), step.limiter.limits
    totals = step.mapped(VariableGradients.total)
    gradients, offender = step.limiter.own_part(totals.by_variable())
    batches = _batches(totals.with_gradients(gradients), overlap)
    of_sum = Limits(limits, offender)
    contribution = _contribution(store, step, permit)
    store.servers.together(
        {
            server: updates.step(
                program, batches[server].gradients, contribution, of_sum, batches[server].backward
            )
            for server in store.servers.used
        }
    )
    store.contributions.commit(Staged(contribution, [*batches.values()]))


def _contribution(store: RemoteStore, step: OptimizerStep, permit: StepPermit) -> Contribution:
    step_tracker, several = store.step_tracker, len(store.servers.used) > 1
    mean = step.reduce_op is ReduceOp.MEAN
    return Contribution(
        step=StepMark(group=step.optimizer, step=permit.step),
        worker=step_tracker.worker or 0,
        num_workers=step_tracker.num_workers,
        replicas=step.replicas,
        reduction=REDUCTION_MEAN if mean else REDUCTION_SUM,
        replicas_to_aggregate=permit.consistency._enough(step_tracker.num_workers),
        global_norm=step.limiter.limits.clip_norm is not None and several,
    )


def _batches(step: OptimizerStep, overlap: OverlappedPush | None) -> ServerBatches:
    """Return what is yet to go to each server of a step with a gradient each."""
    batches = no_batches(step.compressor) if overlap is None else overlap.finish()
    done = () if overlap is None else overlap.variables
    for number, group in enumerate(step.groups):
        for variable, (gradient,) in zip(group.variables, group.gradients, strict=True):
            if variable.name not in done:
                add_gradient(batches, variable, gradient, number)
    return batches
