"""What one step of a `DistributedOptimizer` asks of a strategy, and what replicas bring to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from stratagem._core.distributed_values import has_no_rows
from stratagem._core.options import ReduceOp
from stratagem._core.variables import Variable

if TYPE_CHECKING:
    from stratagem._core.variables import Variable
    from stratagem._gradients.compressor import Compressor
    from stratagem._gradients.limiter import Limiter
    from stratagem._tracing.optimizer_rules import VariableRule


class VariableGradients(NamedTuple):
    """The gradients of one variable in this process.

    Attributes:
        variable: The variable.
        gradients: Dense or `torch.sparse_coo`, of the variable's shape and dtype, from those
            replicas that have one, in replica order; at least one.
    """

    variable: Variable
    gradients: tuple[torch.Tensor, ...]

    def total(self) -> torch.Tensor:
        """Return the sum, on the first gradient's device; added in replica order.

        With one replica it is that gradient itself, not a copy.
        """
        first, *others = self.gradients
        if not others:
            return first
        total = first + others[0].to(first.device)
        for gradient in others[1:]:
            total = total + gradient.to(first.device)
        return total


class GroupStep(NamedTuple):
    """The part of a step that concerns one param group.

    Attributes:
        hyperparameters: The group as torch has it, without its "params".
        variables: The variables of the group that have a gradient, in its order; the same object as
            in the step before, where all have one.
        gradients: As of `VariableGradients`, of each variable.
        rule: How the variables are stepped, unless the class of the optimizer says it.
    """

    hyperparameters: Mapping[str, object]
    variables: Sequence[Variable]
    gradients: Sequence[tuple[torch.Tensor, ...]]
    rule: VariableRule | None = None

    def of(self, updates: Sequence[VariableGradients]) -> GroupStep:
        """Return the same part with other updates."""
        return self._replace(
            variables=[update.variable for update in updates],
            gradients=[update.gradients for update in updates],
        )

    @property
    def updates(self) -> list[VariableGradients]:
        """What is done to each variable."""
        return list(map(VariableGradients, self.variables, self.gradients))


class OptimizerStep(NamedTuple):
    """One step, after the replicas of this process have met.

    Attributes:
        optimizer: Name of the optimizer, unique within the strategy and equal in all workers:
            "Adam_1". Slot variables bear it.
        class_name: Name of the class, of one of
            `stratagem_proto.programs.optimizers.OPTIMIZERS` unless groups have a rule.
        groups: The param groups, in the optimizer's order.
        reduce_op: SUM, or MEAN over those replicas that took part.
        replicas: How many replicas of this process took part: have any gradient.
        compressor: Makes gradients smaller where they leave this process.
        limiter: Keeps them within limits.
        untouched: The other variables of the optimizer, which have no gradient in this process.
    """

    optimizer: str
    class_name: str
    groups: tuple[GroupStep, ...]
    reduce_op: ReduceOp
    replicas: int
    compressor: Compressor
    limiter: Limiter
    untouched: Sequence[Variable] = ()

    def reduced(self, update: VariableGradients) -> torch.Tensor:
        """Return a gradient as this process alone would apply it.

        A replica that took part but has no gradient for the variable counts as zero in a mean.
        """
        total = update.total()
        if self.reduce_op is ReduceOp.MEAN and self.replicas > 1:
            return total / self.replicas
        return total

    def within_limits(self) -> OptimizerStep | None:
        """Return the step as this process alone would take it; None if it is dropped.

        Each variable then has one gradient.

        Raises:
            NonFiniteGradientError: One is not finite, and the limits want no such.
        """
        reduced = self if self.replicas == 1 else self.mapped(self.reduced)
        if not self.limiter.limits:
            return reduced
        limited = self.limiter.limited(reduced.by_variable())
        return None if limited is None else reduced.with_gradients(limited)

    def mapped(self, merge: Callable[[VariableGradients], torch.Tensor]) -> OptimizerStep:
        """Return the step with one gradient for each variable, made of those it has."""
        groups = [
            group._replace(gradients=[(merge(update),) for update in group.updates])
            for group in self.groups
        ]
        return self._replace(groups=tuple(groups))

    def by_variable(self) -> dict[str, torch.Tensor]:
        """Return the gradients of a step that has one for each variable, by name."""
        return {
            variable.name: gradient
            for group in self.groups
            for variable, (gradient,) in zip(group.variables, group.gradients, strict=True)
        }

    def with_gradients(self, gradients: Mapping[str, torch.Tensor]) -> OptimizerStep:
        """Return the step of those variables for which there is a gradient, by name."""
        groups = [
            group.of(
                [
                    VariableGradients(variable, (gradients[variable.name],))
                    for variable in group.variables
                    if variable.name in gradients
                ],
            )
            for group in self.groups
        ]
        return self._replace(groups=tuple(groups))

    def updates(self) -> Iterator[VariableGradients]:
        """Return the updates of all groups."""
        for group in self.groups:
            yield from group.updates


class GradientOverlap(Protocol):
    """Takes the gradients of one optimizer while they come into being."""

    def add(self, variable: Variable, gradient: torch.Tensor, group: int) -> None:
        """Take in a final gradient, which is dense and stays as it is until `discard`."""

    def discard(self) -> None:
        """Begin anew."""


ParamGroups = Sequence[Mapping[str, Any]]
"""Param groups of a `DistributedOptimizer`, each with a `ReplicaParams` of "params"."""


@dataclass(frozen=True, eq=False)
class Contribution:
    """The gradients of one replica.

    Attributes:
        groups: All param groups, each with all its variables; what has no gradient here has an
            empty tuple of them.
    """

    groups: Sequence[GroupStep]

    @classmethod
    def of_this_replica(cls, groups: ParamGroups) -> Contribution:
        """Return what is in the parameters; nothing of a replica without rows."""
        is_absent = has_no_rows()
        return cls([_group_of_this_replica(group, is_absent) for group in groups])

    def __bool__(self) -> bool:
        return any([any(group.gradients) for group in self.groups])


def _group_of_this_replica(group: Mapping[str, Any], is_absent: bool) -> GroupStep:
    params = group["params"]
    gradients: list[tuple[torch.Tensor, ...]] = [
        () if is_absent or (own := parameter.grad) is None else (own,) for parameter in params
    ]
    return GroupStep(hyperparameters_of(group), params.variables(), gradients)


def group_steps(contributions: Sequence[Contribution]) -> tuple[GroupStep, ...]:
    """Return what is done to the variables of each group, given those of all replicas.

    Of several replicas, those without any gradient are left out.
    """
    present = list(filter(None, contributions)) or contributions
    parts = zip(*[one.groups for one in present], strict=True)
    return tuple([_group_step(each) for each in parts])


def _group_step(parts: Sequence[GroupStep]) -> GroupStep:
    hyperparameters, variables, gradients, _ = parts[-1]
    if len(parts) > 1:
        columns = zip(*[part.gradients for part in parts], strict=True)
        gradients = [tuple(chain.from_iterable(column)) for column in columns]
    if all(gradients):
        # As nearly always.
        return GroupStep(hyperparameters, variables, gradients)
    pairs = [pair for pair in zip(variables, gradients, strict=True) if pair[1]]
    return GroupStep(hyperparameters, [one for one, _ in pairs], [each for _, each in pairs])


def untouched(contribution: Contribution, steps: Sequence[GroupStep]) -> list[Variable]:
    """Return the variables of a replica's contribution that its groups' steps leave out."""
    found: list[Variable] = []
    for group, step in zip(contribution.groups, steps, strict=True):
        if step.variables is not group.variables:
            stepped = set(map(id, step.variables))
            found += [one for one in group.variables if id(one) not in stepped]
    return found


def hyperparameters_of(group: Mapping[str, Any]) -> dict[str, object]:
    """Return what a param group has besides its parameters."""
    return {key: value for key, value in group.items() if key != "params"}
