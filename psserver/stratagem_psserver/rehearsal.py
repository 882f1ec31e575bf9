"""What a step of an optimizer would do, tried on scratch tensors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.optimizers import OptimizerRule, Value
from stratagem_psserver.gradients import as_sparse

Hyperparameters = tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class StateTensor:
    """One tensor that an optimizer keeps for a parameter."""

    dtype: torch.dtype
    is_scalar: bool

    def shape(self, parameter: torch.Tensor) -> torch.Size:
        return torch.Size(()) if self.is_scalar else parameter.shape


StateLayout = Mapping[str, StateTensor]

# What torch makes of an optimizer's scalars depends on the default dtype of the
# process, which a program that hosts a server in itself may change at any time.
_SCALAR = torch.float32


def make_optimizer(
    rule: OptimizerRule, values: Mapping[str, Value], fresh: list[torch.Tensor]
) -> torch.optim.Optimizer:
    """An optimizer of one param group with these hyperparameters.

    Args:
        rule: The class to make.
        values: Hyperparameters of the group.
        fresh: Parameters without state. Adagrad gives them theirs at once.
    """
    accepted = _keywords(rule)
    arguments: dict[str, Any] = {
        key: value for key, value in values.items() if key in accepted
    }
    optimizer = rule.cls(fresh or [torch.empty(0)], **arguments)
    # AdamW has hyperparameters that its constructor does not take.
    optimizer.param_groups[0].update(values)
    return optimizer


def take_step(optimizer: torch.optim.Optimizer) -> None:
    """Steps, without the checks of sparse tensors that torch would warn about.

    The rows of a sparse gradient have been checked when it came.
    """
    unchecked = torch.sparse.check_sparse_tensor_invariants
    with unchecked(False):  # type: ignore[no-untyped-call]  # torch has no type for it
        optimizer.step()


@cache
def _keywords(rule: OptimizerRule) -> frozenset[str]:
    return frozenset(inspect.signature(rule.cls.__init__).parameters)


@cache
def hyperparameters_of(rule: OptimizerRule) -> frozenset[str]:
    """Those of the allow-list that this release of PyTorch has for the class."""
    optimizer = make_optimizer(rule, {}, [])
    return rule.hyperparameters & optimizer.param_groups[0].keys()


def rehearse(
    rule: OptimizerRule, values: Mapping[str, Value], dtype: torch.dtype, sparse: bool
) -> StateLayout:
    """The state that these hyperparameters need, after trying them on a scratch.

    A step that fails half-way would leave variables changed, so whatever
    `torch.optim` has to say about it is found out here.

    Args:
        rule: The optimizer.
        values: Hyperparameters of a param group.
        dtype: Of the parameter.
        sparse: Whether its gradient comes by rows.

    Raises:
        InvalidArgumentError: With the sentence of `torch.optim`.
    """
    # The learning rate changes with each step of a scheduler, unlike the rest.
    rate = values.get("lr")
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not rate >= 0:
        raise InvalidArgumentError(
            f"{rule.cls.__name__} cannot step with lr={rate!r}; give a number of at "
            "least 0"
        )
    rest = tuple(sorted((key, value) for key, value in values.items() if key != "lr"))
    return _rehearse(rule, rest, dtype, sparse)


@lru_cache(maxsize=1024)
def _rehearse(
    rule: OptimizerRule, rest: Hyperparameters, dtype: torch.dtype, sparse: bool
) -> StateLayout:
    name = rule.cls.__name__
    try:
        state = _step_once(rule, {"lr": 0.5, **dict(rest)}, dtype, sparse)
    except (RuntimeError, TypeError, ValueError, LookupError) as error:
        kind = "row-sparse" if sparse else "dense"
        raise InvalidArgumentError(
            f"torch.optim.{name} cannot step a {dtype} parameter with a {kind} "
            f"gradient: {error}{_sparse_advice(sparse)}"
        ) from error
    if any(tensor.is_sparse for tensor in state.values()):
        raise InvalidArgumentError(
            f"torch.optim.{name} would keep sparse state{_sparse_advice(sparse)}"
        )
    return {
        key: StateTensor(tensor.dtype if tensor.dim() else _SCALAR, tensor.dim() == 0)
        for key, tensor in state.items()
    }


def _step_once(
    rule: OptimizerRule, values: Mapping[str, Value], dtype: torch.dtype, sparse: bool
) -> dict[str, torch.Tensor]:
    parameter = torch.zeros(1, 1, dtype=dtype)
    parameter.grad = torch.zeros(1, 1, dtype=dtype)
    if sparse:
        row = torch.zeros(1, 1, dtype=torch.int64)
        parameter.grad = as_sparse(row, parameter.grad, parameter.shape)
    optimizer = make_optimizer(rule, values, [parameter])
    optimizer.param_groups[0]["params"] = [parameter]
    take_step(optimizer)
    return dict(optimizer.state[parameter])


def _sparse_advice(sparse: bool) -> str:
    if not sparse:
        return ""
    return (
        "; row-sparse gradients work with SGD without momentum and weight decay and "
        "with Adagrad without weight decay, neither fused"
    )
