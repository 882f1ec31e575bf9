"""The allow-list of optimizers that servers run, and their hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError
from stratagem_proto.v1.update_program_pb2 import (
    Hyperparameter,
    HyperparameterGroup,
    NumberList,
)

Value = bool | int | float | tuple[float, ...] | None


@dataclass(frozen=True)
class OptimizerRule:
    """An optimizer class that servers may run.

    Attributes:
        cls: The class of `torch.optim`.
        hyperparameters: Keys of its param groups that travel with each step.
    """

    cls: type[torch.optim.Optimizer]
    hyperparameters: frozenset[str]


def _rule(cls: type[torch.optim.Optimizer], *own: str) -> OptimizerRule:
    shared = ("lr", "weight_decay", "maximize", "foreach", *_REFUSED_FLAGS)
    return OptimizerRule(cls, frozenset((*shared, *own)))


# They tie a step to CUDA graphs and to autograd, which end at the process.
_REFUSED_FLAGS = ("capturable", "differentiable")

_ADAM = ("betas", "eps", "amsgrad", "fused", "decoupled_weight_decay")

OPTIMIZERS: Mapping[str, OptimizerRule] = {
    "SGD": _rule(torch.optim.SGD, "momentum", "dampening", "nesterov", "fused"),
    "Adam": _rule(torch.optim.Adam, *_ADAM),
    "AdamW": _rule(torch.optim.AdamW, *_ADAM),
    "SparseAdam": _rule(torch.optim.SparseAdam, "betas", "eps"),
    "Adagrad": _rule(
        torch.optim.Adagrad, "lr_decay", "eps", "initial_accumulator_value", "fused"
    ),
    "RMSprop": _rule(torch.optim.RMSprop, "alpha", "eps", "momentum", "centered"),
    "Adamax": _rule(torch.optim.Adamax, "betas", "eps"),
    "NAdam": _rule(
        torch.optim.NAdam, "betas", "eps", "momentum_decay", "decoupled_weight_decay"
    ),
    "RAdam": _rule(torch.optim.RAdam, "betas", "eps", "decoupled_weight_decay"),
    "Adadelta": _rule(torch.optim.Adadelta, "rho", "eps"),
    "Rprop": _rule(torch.optim.Rprop, "etas", "step_sizes"),
    "ASGD": _rule(torch.optim.ASGD, "lambd", "alpha", "t0"),
}


def rule_named(class_name: str) -> OptimizerRule:
    """The rule of an optimizer class.

    Raises:
        InvalidArgumentError: The class is not on the allow-list.
    """
    try:
        return OPTIMIZERS[class_name]
    except KeyError:
        raise InvalidArgumentError(
            f"parameter servers do not run the optimizer {class_name!r}; they run "
            f"{', '.join(OPTIMIZERS)}. Write others with `extended.update`"
        ) from None


def encode_group(
    rule: OptimizerRule, group: Mapping[str, object]
) -> HyperparameterGroup:
    """The hyperparameters of a torch param group as a message.

    Keys that are not the optimizer's own, such as a scheduler's `initial_lr`, stay
    behind.

    Raises:
        InvalidTypeError: A value has no form on the wire.
    """
    values = {
        key: _encode(key, group[key])
        for key in sorted(rule.hyperparameters & group.keys())
    }
    return HyperparameterGroup(values=values)


def _encode(key: str, value: object) -> Hyperparameter:
    if value is None:
        return Hyperparameter()
    if isinstance(value, bool):
        return Hyperparameter(flag=value)
    if isinstance(value, int):
        return Hyperparameter(integer=value)
    if isinstance(value, float):
        return Hyperparameter(number=value)
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return Hyperparameter(number=float(value))
    if isinstance(value, (tuple, list)):
        return Hyperparameter(numbers=NumberList(values=[float(v) for v in value]))
    raise InvalidTypeError(
        f"hyperparameter {key!r} is a {type(value).__name__}; "
        "a number, a flag or a tuple of numbers can be sent"
    )


def decode_group(rule: OptimizerRule, group: HyperparameterGroup) -> dict[str, Value]:
    """The hyperparameters of a message as keyword arguments.

    Raises:
        InvalidArgumentError: A key is not the optimizer's, or a flag is set that
            servers cannot honour.
    """
    values = {key: _decode(value) for key, value in group.values.items()}
    if unknown := values.keys() - rule.hyperparameters:
        raise InvalidArgumentError(
            f"{rule.cls.__name__} has no hyperparameter {sorted(unknown)[0]!r}"
        )
    for flag in _REFUSED_FLAGS:
        if values.get(flag):
            raise InvalidArgumentError(
                f"{rule.cls.__name__}({flag}=True) cannot run on a parameter server; "
                f"leave {flag} out"
            )
    return values


def _decode(value: Hyperparameter) -> Value:
    match value.WhichOneof("kind"):
        case "flag":
            return value.flag
        case "integer":
            return value.integer
        case "number":
            return value.number
        case "numbers":
            return tuple(value.numbers.values)
    return None
