"""The allow-list of optimizers that servers run, and their hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

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
    "Adagrad": _rule(torch.optim.Adagrad, "lr_decay", "eps", "initial_accumulator_value", "fused"),
    "RMSprop": _rule(torch.optim.RMSprop, "alpha", "eps", "momentum", "centered"),
    "Adamax": _rule(torch.optim.Adamax, "betas", "eps"),
    "NAdam": _rule(torch.optim.NAdam, "betas", "eps", "momentum_decay", "decoupled_weight_decay"),
    "RAdam": _rule(torch.optim.RAdam, "betas", "eps", "decoupled_weight_decay"),
    "Adadelta": _rule(torch.optim.Adadelta, "rho", "eps"),
    "Rprop": _rule(torch.optim.Rprop, "etas", "step_sizes"),
    "ASGD": _rule(torch.optim.ASGD, "lambd", "alpha", "t0"),
}


def rule_named(class_name: str) -> OptimizerRule:
    """Return the rule of an optimizer class.

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


def values_of(rule: OptimizerRule, group: Mapping[str, object]) -> dict[str, Value]:
    """Return the hyperparameters of a torch param group, as plain values.

    Keys that are not the optimizer's own, such as a scheduler's `initial_lr`, stay behind.

    Raises:
        InvalidTypeError: A value has no form on the wire.
    """
    keys = sorted(rule.hyperparameters & group.keys())
    return {key: _plain(key, group[key]) for key in keys}


def _plain(key: str, value: object) -> Value:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, tuple | list):
        return tuple(float(v) for v in value)
    raise InvalidTypeError(
        f"hyperparameter {key!r} is a {type(value).__name__}; "
        "a number, a flag or a tuple of numbers can be sent"
    )


def require_honoured(rule: OptimizerRule, values: Mapping[str, Value]) -> None:
    """Check that a server can take steps with these hyperparameters.

    Raises:
        InvalidArgumentError: A key is not the optimizer's, or a flag is set that servers cannot
            honour.
    """
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
