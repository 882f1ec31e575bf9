"""Trying steps of optimizers on scratch tensors, to learn what they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs.optimizers import OptimizerRule, TypedNumber, Value
from stratagem_psserver.optimization.gradients import as_sparse
from stratagem_psserver.optimization.single_steps import make_optimizer, take_step

Hyperparameters = tuple[tuple[str, Value], ...]


# These step each row by itself: a step of some rows of a variable is the same as a step of a
# variable that has only these rows.
ROW_WISE = frozenset({"SGD", "Adagrad", "Adam", "AdamW", "RMSprop", "RowWiseAdagrad", "SparseAdam"})


@dataclass(frozen=True)
class StateTensor:
    """One tensor, or number, that an optimizer keeps for a parameter.

    Attributes:
        dtype: The dtype of the tensor. The optimizer gets a scalar of int64 as a Python int.
        is_scalar: Whether it is one value, and not one for each element of the parameter.
        initial: The value of its elements before the first step.
        is_per_row: Whether it is one value for each row of the parameter.
    """

    dtype: torch.dtype
    is_scalar: bool
    initial: float = 0.0
    is_per_row: bool = False

    def shape(self, parameter: torch.Tensor) -> torch.Size:
        return self.shape_for(parameter.shape)

    def shape_for(self, parameter: Sequence[int]) -> torch.Size:
        """Return the shape of the state of a parameter of a shape."""
        if self.is_scalar:
            return torch.Size(())
        return torch.Size(parameter[:1] if self.is_per_row else parameter)

    def bound(self, tensor: torch.Tensor) -> torch.Tensor | int:
        """Return the state as the optimizer takes it."""
        is_number = self.is_scalar and self.dtype == torch.int64
        return int(tensor) if is_number else tensor


StateLayout = Mapping[str, StateTensor]


@dataclass(frozen=True)
class StepNeeds:
    """What a step needs.

    Attributes:
        layout: The state that the optimizer keeps for a parameter.
        takes_sparse: Whether the optimizer accepts a sparse tensor as a gradient. Otherwise a
            row-sparse gradient is passed as the dense gradient of a parameter that has only its
            rows.
    """

    layout: StateLayout
    takes_sparse: bool

    @cached_property
    def has_rows(self) -> bool:
        """Whether some of the state is one number for each row."""
        return any(state.is_per_row for state in self.layout.values())


# torch gives an optimizer's scalars the default dtype of the process, which a program that runs a
# server in its own process may change at any time.
_SCALAR = torch.float32


@cache
def hyperparameters_of(rule: OptimizerRule) -> frozenset[str]:
    """Return the hyperparameters of the allow-list that this release of PyTorch has."""
    optimizer = make_optimizer(rule, {}, [])
    return rule.hyperparameters & optimizer.param_groups[0].keys()


def dry_run(
    rule: OptimizerRule, values: Mapping[str, Value], dtype: torch.dtype, sparse: bool
) -> StepNeeds:
    """Try a step with these hyperparameters on scratch tensors, and return what it needs.

    This finds the errors that `torch.optim` raises for hyperparameters, except those that depend on
    the learning rate and on state; `certainty` is about these.

    Args:
        rule: The optimizer.
        values: Hyperparameters of a param group.
        dtype: The dtype of the parameter.
        sparse: Whether its gradient is row-sparse.

    Raises:
        InvalidArgumentError: `torch.optim` refuses the step; the message contains its reason.
    """
    # Schedulers change the learning rate at each step, so it is no key of the cache.
    rate = values.get("lr")
    rate = rate.number if isinstance(rate, TypedNumber) else rate
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not rate >= 0:
        raise InvalidArgumentError(
            f"{rule.cls.__name__} cannot step with lr={rate!r}; give a number of at least 0"
        )
    rest = tuple(sorted((key, value) for key, value in values.items() if key != "lr"))
    return _dry_run(rule, rest, dtype, sparse)


@lru_cache(maxsize=1024)
def _dry_run(
    rule: OptimizerRule, rest: Hyperparameters, dtype: torch.dtype, sparse: bool
) -> StepNeeds:
    if not sparse:
        return StepNeeds(_layout(rule, rest, dtype, False), False)
    try:
        return StepNeeds(_layout(rule, rest, dtype, True), True)
    except InvalidArgumentError:
        if rule.cls.__name__ not in ROW_WISE:
            raise
        return StepNeeds(_layout(rule, rest, dtype, False), False)


def _layout(
    rule: OptimizerRule, rest: Hyperparameters, dtype: torch.dtype, sparse: bool
) -> StateLayout:
    name, advice = rule.cls.__name__, ""
    if sparse:
        advice = f"; row-sparse gradients work with {', '.join(sorted(ROW_WISE))}"
    try:
        before, after = _step_once(rule, {"lr": 0.5, **dict(rest)}, dtype, sparse)
    except Exception as error:
        kind = "row-sparse" if sparse else "dense"
        raise InvalidArgumentError(
            f"torch.optim.{name} cannot step a {dtype} parameter with a {kind} "
            f"gradient: {error}{advice}"
        ) from error
    if any(tensor.is_sparse for tensor in after.values()):
        raise InvalidArgumentError(f"torch.optim.{name} would keep sparse state{advice}")
    return {key: _kept(tensor, before.get(key)) for key, tensor in after.items()}


def _kept(tensor: torch.Tensor, before: torch.Tensor | None) -> StateTensor:
    initial = 0.0 if before is None else float(before.flatten()[0])
    if tensor.dim():
        return StateTensor(tensor.dtype, False, initial, is_per_row=tensor.dim() == 1)
    is_number = tensor.dtype == torch.int64
    return StateTensor(torch.int64 if is_number else _SCALAR, True, initial)


def _step_once(
    rule: OptimizerRule, values: Mapping[str, Value], dtype: torch.dtype, sparse: bool
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the state before and after a step of one element."""
    parameter = torch.zeros(1, 1, dtype=dtype)
    parameter.grad = torch.zeros(1, 1, dtype=dtype)
    if sparse:
        row = torch.zeros(1, 1, dtype=torch.int64)
        parameter.grad = as_sparse(row, parameter.grad, parameter.shape)
    optimizer = make_optimizer(rule, values, [parameter])
    optimizer.param_groups[0]["params"] = [parameter]
    before = _tensors(optimizer.state[parameter])
    take_step(optimizer, sparse)
    return before, _tensors(optimizer.state[parameter])


def _tensors(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return a copy of the state, with numbers as tensors."""
    return {key: torch.as_tensor(value).clone() for key, value in state.items()}
