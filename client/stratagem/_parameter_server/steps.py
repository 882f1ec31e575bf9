"""Optimizer steps that servers carry out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch

from stratagem._enums import ReduceOp
from stratagem._optimizers.compressor import Compressor
from stratagem._optimizers.step import OptimizerStep
from stratagem._parameter_server.pace import Pace
from stratagem._parameter_server.split_variable import SplitVariable, rows_or_dense
from stratagem._parameter_server.store import RemoteStore
from stratagem._parameter_server.variable import RemoteVariable, remote_of
from stratagem._servers import updates
from stratagem._servers.updates import Gradient, Limits
from stratagem._variables.indexed_slices import IndexedSlices
from stratagem._variables.variable import Variable
from stratagem_proto.consistency import has_backups
from stratagem_proto.errors import InternalError, UnimplementedError
from stratagem_proto.gradient_limits import GradientLimits
from stratagem_proto.optimizers import encode_group, rule_named
from stratagem_proto.v1.consistency_pb2 import CONSISTENCY_MODE_SYNC, StepGrant
from stratagem_proto.v1.parameter_server_pb2 import (
    REDUCTION_MEAN,
    REDUCTION_SUM,
    Contribution,
    StepMark,
)
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram


def take(store: RemoteStore, step: OptimizerStep) -> None:
    """Have the servers apply a step as its consistency says.

    On this worker's gradients now; or on those of all workers, when they have come.
    """
    grant = store.leave(step.optimizer)
    if grant.consistency.mode == CONSISTENCY_MODE_SYNC:
        _contribute(store, step, grant)
    else:
        _push(store, step)
    store.pace.finish(step.optimizer, grant.step)


class _Load:
    """What one server gets in a step.

    Args:
        compressor: Makes it smaller.

    Attributes:
        gradients: The gradients of its variables.
    """

    def __init__(self, compressor: Compressor) -> None:
        self.gradients: list[Gradient] = []
        self._compressor = compressor
        self._losses: dict[str, torch.Tensor] = {}

    def add(
        self, variable: str, value: torch.Tensor | IndexedSlices, group: int
    ) -> None:
        """Take in a gradient, dense or row-sparse."""
        if isinstance(value, IndexedSlices):
            rows = self._compressor.rows(value.values)
            self.gradients.append(Gradient(variable, rows, group, value.indices))
            return
        compressed = self._compressor.dense(variable, value)
        self.gradients.append(Gradient(variable, compressed.value, group))
        if compressed.loss is not None:
            self._losses[variable] = compressed.loss

    def arrived(self) -> None:
        """Take note that the server has the gradients."""
        for variable, loss in self._losses.items():
            self._compressor.keep(variable, loss)


def _push(store: RemoteStore, step: OptimizerStep) -> None:
    reduced = {update.variable.name: step.reduced(update) for update in step.updates()}
    gradients = step.limiter.limited(reduced)
    if gradients is None:
        return
    program = _program(step)
    loads = _loads(step, gradients)
    store.servers.together(
        {
            server: updates.step(program, load.gradients).then(load.arrived)
            for server, load in loads.items()
        }
    )


def _contribute(store: RemoteStore, step: OptimizerStep, grant: StepGrant) -> None:
    """Add this worker's gradients to a step.

    Every server gets a part, if only an empty one, so that all come to the same
    steps; the parts count once all servers have theirs.
    """
    program, limits = _program(step), step.limiter.limits
    _require_whole_norm(store, limits)
    totals = {update.variable.name: update.total() for update in step.updates()}
    gradients, offender = step.limiter.own_part(totals)
    loads = _loads(step, gradients)
    of_sum = Limits(limits, offender)
    contribution = _contribution(store.pace, step, grant)
    store.servers.together(
        {
            server: updates.step(program, loads[server].gradients, contribution, of_sum)
            for server in store.servers.used
        }
    )
    if _is_counted(store, contribution):
        for load in loads.values():
            load.arrived()
        store.pace.count(contribution.step)


def _contribution(pace: Pace, step: OptimizerStep, grant: StepGrant) -> Contribution:
    mean = step.reduce_op is ReduceOp.MEAN
    backups = has_backups(grant.consistency, pace.num_workers)
    return Contribution(
        step=StepMark(group=step.optimizer, step=grant.step),
        worker=pace.worker or 0,
        num_workers=pace.num_workers,
        replicas=step.replicas,
        reduction=REDUCTION_MEAN if mean else REDUCTION_SUM,
        replicas_to_aggregate=grant.consistency.replicas_to_aggregate * backups,
    )


def _is_counted(store: RemoteStore, contribution: Contribution) -> bool:
    """Commit what is staged; false if others have closed the step without it."""
    mark, servers, first = contribution.step, store.servers, store.first
    others = [server for server in servers.used if server != first]
    if contribution.replicas_to_aggregate:
        # The first server decides whose contributions count, on all servers.
        if servers.call(first, updates.commit(mark)).dropped:
            return False
        servers.together({server: updates.commit(mark) for server in others})
    else:
        # The first server last: what counts there counts on all, so that a worker
        # that ends here and is started again knows what it has to repeat.
        try:
            servers.together({server: updates.commit(mark) for server in others})
        finally:
            servers.call(first, updates.commit(mark))
    return True


def _program(step: OptimizerStep) -> OptimizerProgram:
    rule = rule_named(step.class_name)
    return OptimizerProgram(
        name=step.optimizer,
        class_name=step.class_name,
        groups=[encode_group(rule, group.hyperparameters) for group in step.groups],
    )


def _require_whole_norm(store: RemoteStore, limits: GradientLimits) -> None:
    servers = len(store.servers.used)
    if limits.clip_norm is not None and servers > 1:
        raise UnimplementedError(
            "clip_norm does not work for synchronous steps yet where variables are on "
            f"{servers} servers, each of which has a part of the sum only; use one "
            "server or clip_value, or clip each replica's gradients by "
            "torch.nn.utils.clip_grad_norm_"
        )


def _loads(
    step: OptimizerStep, gradients: Mapping[str, torch.Tensor]
) -> dict[int, _Load]:
    """What goes to each server, given the gradients by variable."""
    loads: dict[int, _Load] = defaultdict(lambda: _Load(step.compressor))
    for number, group in enumerate(step.groups):
        for update in group.updates:
            value = gradients.get(update.variable.name)
            if value is None:
                continue
            for variable, share in _shares(update.variable, value):
                loads[variable.place.server].add(variable.name, share, number)
    return loads


def _shares(
    variable: Variable, value: torch.Tensor
) -> Iterable[tuple[RemoteVariable, torch.Tensor | IndexedSlices]]:
    """The gradient of a variable, by what it is on the servers."""
    if isinstance(variable, SplitVariable):
        return zip(variable.parts, variable.gradients(value), strict=True)
    return [(_remote(variable), rows_or_dense(value))]


def _remote(variable: Variable) -> RemoteVariable:
    remote = remote_of(variable)
    if remote is None:
        raise InternalError(f"variable {variable.name!r} is on no parameter server")
    return remote
