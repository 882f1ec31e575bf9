"""What happens to gradients between backward and the variables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch.optim import Optimizer

from stratagem._core.distributed_values import has_no_rows
from stratagem._core.options import ReduceOp
from stratagem._core.variables import Variable
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from stratagem_proto.programs.gradient_limits import GradientLimits

if TYPE_CHECKING:
    from stratagem._tracing.optimizer_rules import VariableRule
    from stratagem.compression import Compression
    from stratagem_proto.wire.encodings import Encoded


class Compressed(NamedTuple):
    """A gradient to send.

    Attributes:
        value: As it travels.
        residual: What the receiver lacks of it, and of what was kept for it; None if nothing is
            kept.
    """

    value: torch.Tensor | Encoded
    residual: torch.Tensor | None = None


class Compressor:
    """Compresses gradients, and keeps their residuals until the next ones.

    A residual counts once `keep` is called: when the gradient has arrived. A failed step leaves
    what was kept for the next try. Without a compression, gradients stay as they are.
    """

    def __init__(self, compression: Compression | None) -> None:
        self.compression = compression
        self._residuals: dict[str, torch.Tensor] = {}

    def dense(self, variable: str, value: torch.Tensor) -> Compressed:
        """Compress the gradient of a whole variable.

        One that is not finite, or that would not become smaller, stays as it is.
        """
        compression = self.compression
        if compression is None or not value.is_floating_point():
            return Compressed(value)
        if not compression.error_feedback:
            return Compressed(_smaller(compression, value))
        if not bool(value.isfinite().all()):
            return Compressed(value)
        whole, residual = value.detach(), self._residuals.get(variable)
        if residual is not None:
            whole = whole + residual.to(whole.device)
        sent = _smaller(compression, whole)
        if isinstance(sent, torch.Tensor):
            return Compressed(sent, whole - sent)
        from stratagem_proto.wire.encodings import decode

        return Compressed(sent, whole - decode(sent))

    def rows(self, values: torch.Tensor) -> torch.Tensor | Encoded:
        """Compress the values of a row-sparse gradient."""
        compression = self.compression
        if compression is None or not compression.compresses_rows:
            return values
        if not values.is_floating_point() or not bool(values.isfinite().all()):
            return values
        return _smaller(compression, values)

    def keep(self, variable: str, residual: torch.Tensor) -> None:
        """Keep what the last gradient of a variable lost."""
        self._residuals[variable] = residual

    def kept(self, variable: str, like: torch.Tensor) -> torch.Tensor | None:
        """Return what is kept for a variable; None if the compression keeps nothing."""
        if self.compression is None or not self.compression.error_feedback:
            return None
        return self._residuals.get(variable, like).cpu()

    def drop(self) -> None:
        """Keep nothing of the gradients until now."""
        self._residuals.clear()


def compressor_for(given: Compression | str | None) -> Compressor:
    """Return a compressor of the compression that a user means, by its name or as it is."""
    if given is None:
        return Compressor(None)
    # Late, here and above: programs that compress nothing do without protobuf.
    from stratagem.compression import compression_from

    return Compressor(compression_from(given))


def _smaller(compression: Compression, value: torch.Tensor) -> torch.Tensor | Encoded:
    encoded = compression.encode(value)
    return encoded if encoded.nbytes < value.nbytes else value


_LOG = logging.getLogger("stratagem")


class Limiter:
    """Screens and clips gradients, and counts the steps that it drops."""

    def __init__(self, limits: GradientLimits) -> None:
        self.limits = limits
        # Asked for in each step.
        self.has_limits = bool(limits)
        self.rejected_steps: int = 0

    def require_none(self, what: str) -> None:
        """Refuse what excludes limits if there are any."""
        if self.limits:
            raise InvalidArgumentError(
                f"{what} sends gradients before all of a step are there, so that they "
                "cannot be kept within limits; leave it out, or clip_norm, clip_value "
                "and on_nonfinite"
            )

    def limited(self, gradients: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor] | None:
        """Return reduced gradients, all of a step, within the limits.

        Args:
            gradients: Dense or `torch.sparse_coo`, by variable; they stay as they are.

        Returns:
            None if the step is dropped.

        Raises:
            NonFiniteGradientError: One is not finite, and the limits want no such.
        """
        if not self.limits:
            return gradients
        whole = {
            name: each.coalesce() if each.is_sparse else each for name, each in gradients.items()
        }
        values = {name: _values(each) for name, each in whole.items()}
        within = self.limits.apply(values)
        if within is None:
            self.rejected_steps += 1
            offender = self.limits.offender(values)
            _LOG.warning("A step is dropped: the gradient of %r has NaN or infinities.", offender)
            return None
        return {name: _with_values(whole[name], each) for name, each in within.items()}

    def own_part(
        self, gradients: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], str]:
        """Return this worker's part of what is clipped where it is added up.

        With it comes the name of a variable because of which the step is to be dropped or to
        fail; "" if there is none.
        """
        values = {name: _values(each) for name, each in gradients.items()}
        if offender := self.limits.offender(values):
            return {}, offender
        zeroed = self.limits.zeroed(values).items()
        return {name: _with_values(gradients[name], each) for name, each in zeroed}, ""

    def step_alone(self, optimizer: Optimizer) -> None:
        """Have an optimizer step its parameters here, on gradients within the limits.

        As by torch's own clipping, the gradients are limited themselves.
        """
        groups = [group["params"] for group in optimizer.param_groups]
        parameters = [p for group in groups for p in group if p.grad is not None]
        if self.limits:
            numbered = {f"parameter {i}": p.grad for i, p in enumerate(parameters)}
            limited = self.limited(numbered)
            if limited is None:
                return
            for parameter, gradient in zip(parameters, limited.values(), strict=True):
                parameter.grad = gradient
        optimizer.step()


def _values(gradient: torch.Tensor) -> torch.Tensor:
    return gradient._values() if gradient.is_sparse else gradient


def _with_values(gradient: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    if not gradient.is_sparse:
        return values
    return torch.sparse_coo_tensor(
        gradient._indices(),
        values,
        gradient.shape,
        check_invariants=False,
        is_coalesced=gradient.is_coalesced(),
    )


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

    def with_updates(self, updates: Sequence[VariableGradients]) -> GroupStep:
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
        if not self.limiter.has_limits:
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
            group.with_updates(
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
        steps: list[GroupStep] = []
        for group in groups:
            try:
                leaves, variables = group["params"].of_replica()
            except AttributeError:
                raise _not_taken_over(group, len(steps)) from None
            gradients: list[tuple[torch.Tensor, ...]] = [
                () if is_absent or (own := leaf.grad) is None else (own,) for leaf in leaves
            ]
            steps.append(GroupStep(hyperparameters_of(group), variables, gradients))
        return cls(steps)

    def __bool__(self) -> bool:
        return any([any(group.gradients) for group in self.groups])


def _not_taken_over(group: Mapping[str, Any], number: int) -> Exception:
    return FailedPreconditionError(
        f"param group {number} has {type(group['params']).__name__} as its params, which "
        "DistributedOptimizer has not seen: it was added to the wrapped optimizer, or replaced. "
        "Nothing was stepped. Add groups by the DistributedOptimizer's own add_param_group()"
    )


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
