"""Modules of strategies that keep a copy of each variable with each replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import Parameter

from stratagem._core.device_names import torch_device
from stratagem._core.distributed_values import PerReplica
from stratagem._core.reduction import CrossDeviceOps
from stratagem._core.variable_creation import VariableTraits
from stratagem._core.variables import LocalVariable, Variable
from stratagem._gradients import OptimizerStep, VariableGradients
from stratagem._hosting.adoption import Adoption
from stratagem._hosting.hosted_parameter import HostedParameter
from stratagem._hosting.hosting import MadeElsewhere
from stratagem._local.hosting import LocalHosting
from stratagem._strategies.extended import StrategyExtended
from stratagem_proto.errors import ContextError

Unite = Callable[[Sequence[LocalVariable]], Variable]
"""Returns the variable that consists of copies, one on each replica's device."""


def _are_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    # What has diverged is alike as well, and is the user's to find.
    return torch.equal(one, other) or torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _make_copies_of_first(hosted: HostedParameter) -> None:
    hosted.accept_everywhere()
    for copy, leaf in zip(hosted.variable.values, hosted.leaves, strict=True):
        assert isinstance(copy, LocalVariable)
        copy.follow(leaf)


class CopiesHosting(LocalHosting):
    """Keeps a leaf of each parameter on each replica's device.

    Leaves have storage of their own, and optimizers work on them in place. When the user writes a
    parameter, the first replica's leaf counts.
    """

    def __init__(
        self,
        extended: StrategyExtended,
        names: Sequence[str],
        cross_device_ops: CrossDeviceOps,
        unite: Unite,
        elsewhere: MadeElsewhere | None = None,
    ) -> None:
        super().__init__(extended, [*map(torch_device, names)], elsewhere)
        self._device_names = names
        self._cross_device_ops = cross_device_ops
        self._unite = unite

    def host_one(self, adoption: Adoption) -> None:
        parameter = adoption.parameter
        leaves = [
            Parameter(parameter.detach().to(device, copy=True), parameter.requires_grad)
            for device in self.devices[1:]
        ]
        traits = VariableTraits.of(adoption.name, parameter.requires_grad)
        copies = zip((parameter, *leaves), self._device_names, strict=True)
        variable = self._unite(
            [LocalVariable.over(leaf, traits, device) for leaf, device in copies]
        )
        self.parameters.add(parameter, variable, adoption.owners, leaves)

    def before_replicas(self) -> None:
        super().before_replicas()
        for hosted in self.parameters.written_locally():
            if hosted.was_written(since_replica=1):
                self.accept_writes(hosted)
            _make_copies_of_first(hosted)

    def apply_gradients(self, step: OptimizerStep) -> None:
        for hosted in self.parameters:
            if hosted.was_written():
                self.accept_writes(hosted)
        super().apply_gradients(self.joined(step))
        for hosted in self.parameters:
            hosted.accept()

    def accept_writes(self, hosted: HostedParameter) -> None:
        """Take what replicas have written into a parameter, if it is the same in all of them.

        Raises:
            ContextError: It is not; all have the first one's then.
        """
        first, *others = hosted.leaves
        if not all(_are_alike(first, leaf.to(first.device)) for leaf in others):
            _make_copies_of_first(hosted)
            raise ContextError(
                f"parameter {hosted.name!r} was written in replicas, and not alike, as the "
                "`max_norm` of an embedding does, which scales the rows that a replica looks up; "
                "write parameters outside of run(), or the same in each replica. All replicas have "
                "the first one's now"
            )

    def joined(self, step: OptimizerStep) -> OptimizerStep:
        """Return a step as it is to be taken."""
        return step

    def reduced_gradients(self, step: OptimizerStep) -> list[Any]:
        pairs = [
            (PerReplica(update.gradients), update.variable)
            for update in step.updates()
            if self._has_all_dense(update)
        ]
        reduced = iter(self._cross_device_ops.batch_reduce(step.reduce_op, pairs))
        return [
            next(reduced) if self._has_all_dense(update) else step.reduced(update)
            for update in step.updates()
        ]

    def _has_all_dense(self, update: VariableGradients) -> bool:
        dense = not any(gradient.is_sparse for gradient in update.gradients)
        return dense and len(update.gradients) == len(self.devices) > 1
