"""Optimizer steps that servers carry out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from stratagem._enums import ReduceOp
from stratagem._optimizers.compressor import Compressor
from stratagem._optimizers.step import OptimizerStep
from stratagem._parameter_server.split_variable import SplitVariable, rows_or_dense
from stratagem._parameter_server.store import RemoteStore
from stratagem._parameter_server.variable import RemoteVariable, remote_of
from stratagem._servers import updates
from stratagem._servers.updates import Gradient, Limits
from stratagem._variables.indexed_slices import IndexedSlices
from stratagem._variables.variable import Variable
from stratagem_proto.errors import InternalError, UnimplementedError
from stratagem_proto.gradient_limits import GradientLimits
from stratagem_proto.optimizers import encode_group, rule_named
from stratagem_proto.v1.parameter_server_pb2 import (
    REDUCTION_MEAN,
    REDUCTION_SUM,
    Contribution,
)
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram


@dataclass(frozen=True)
class Contributor:
    """This worker among those whose gradients make up one synchronous step.

    Attributes:
        number: Its place in the order of addition, from 0.
        num_workers: How many contributions close a step.
    """

    number: int
    num_workers: int


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


def push(store: RemoteStore, step: OptimizerStep) -> None:
    """Have the servers apply a step now, on the gradients of this worker alone."""
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


def contribute(
    store: RemoteStore, step: OptimizerStep, contributor: Contributor
) -> None:
    """Add this worker's gradients to a step that servers apply when all have come.

    Every server gets a part, if only an empty one, so that all come to the same
    steps; the parts count once all servers have theirs.
    """
    mark = store.marks.next(step.optimizer, store.is_applied)
    program, limits = _program(step), step.limiter.limits
    _require_whole_norm(store, limits)
    totals = {update.variable.name: update.total() for update in step.updates()}
    gradients, offender = step.limiter.own_part(totals)
    loads = _loads(step, gradients)
    of_sum = Limits(limits, offender)
    mean = step.reduce_op is ReduceOp.MEAN
    contribution = Contribution(
        step=mark,
        worker=contributor.number,
        num_workers=contributor.num_workers,
        replicas=step.replicas,
        reduction=REDUCTION_MEAN if mean else REDUCTION_SUM,
    )
    store.servers.together(
        {
            server: updates.step(program, loads[server].gradients, contribution, of_sum)
            for server in store.servers.used
        }
    )
    store.servers.on_all(lambda: updates.commit(mark))
    for load in loads.values():
        load.arrived()
    store.marks.commit(mark)


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
