"""The allow-list of optimizers that servers run, and their hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError
from stratagem_proto.programs.row_wise_adagrad import RowWiseAdagrad


@dataclass(frozen=True)
class TypedNumber:
    """A hyperparameter with which torch computes in a precision of its own.

    Plain PyTorch gives other bytes for a learning rate in a tensor of float32, or in a scalar of
    NumPy of that type, than for the float of that value.

    Attributes:
        number: The value, which a number of the type has.
        dtype: The type.
        is_tensor: Whether it is a tensor of no dimensions, and not a scalar of NumPy.

    Raises:
        InvalidArgumentError: The type does not hold the value, or is not one of these.
    """

    number: float
    dtype: torch.dtype
    is_tensor: bool

    def __post_init__(self) -> None:
        if self.dtype not in (_OF_TENSORS if self.is_tensor else _OF_NUMPY):
            kind = "tensor" if self.is_tensor else "scalar of NumPy"
            raise InvalidArgumentError(
                f"a hyperparameter is a {kind} of {self.dtype}; give a Python number"
            )
        try:
            is_held = self.number == float(self.made()) or self.number != self.number
        except (ValueError, OverflowError, RuntimeError):
            is_held = False
        if not is_held:
            raise InvalidArgumentError(
                f"a hyperparameter is {self.number!r} as {self.dtype}, which does not hold it"
            )

    def made(self) -> torch.Tensor | np.floating[Any]:
        """Return the number as torch is to compute with it."""
        if self.is_tensor:
            whole = not self.dtype.is_floating_point
            return torch.tensor(int(self.number) if whole else self.number, dtype=self.dtype)
        with np.errstate(over="ignore"):
            return _OF_NUMPY[self.dtype](self.number)


_OF_NUMPY: Mapping[torch.dtype, type[np.floating[Any]]] = {
    torch.float16: np.float16,
    torch.float32: np.float32,
}
_OF_TENSORS = frozenset(
    {
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    }
)

Value = bool | int | float | tuple[float, ...] | TypedNumber | None


@dataclass(frozen=True)
class OptimizerRule:
    """An optimizer class that servers may run.

    Attributes:
        cls: The class, of `torch.optim` or of a file beside this one.
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
    "RowWiseAdagrad": _rule(RowWiseAdagrad, "eps"),
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
    if isinstance(value, tuple | list):
        each = [_plain(key, one) for one in value]
        if all(isinstance(one, int | float) for one in each):
            return tuple(float(one) for one in each)  # type: ignore[arg-type]
        raise InvalidTypeError(
            f"hyperparameter {key!r} is {value!r:.100}, whose elements are not all plain numbers; "
            "convert them with float()"
        )
    try:
        found = _typed(value)
    except InvalidArgumentError as error:
        raise InvalidTypeError(f"hyperparameter {key!r}: {error}") from error
    if found is None:
        raise InvalidTypeError(
            f"hyperparameter {key!r} is a {type(value).__name__}, {value!r:.100}; a number, a "
            "tensor of one number, a flag or a tuple of numbers can be sent"
        )
    return found


def _typed(value: object) -> Value:
    """Return a tensor, or a number of NumPy, as it is sent; None for anything else."""
    if isinstance(value, np.ndarray) and not value.shape:
        # Torch computes with it as with the scalar.
        value = value[()]
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
        return TypedNumber(float(value.detach()), value.dtype, is_tensor=True)
    for dtype, kind in _OF_NUMPY.items():
        if isinstance(value, kind):
            return TypedNumber(float(value), dtype, is_tensor=False)
    if isinstance(value, np.float64 | np.bool_ | np.signedinteger):
        # These compute as Python's numbers do.
        plain: bool | int | float = value.item()
        return plain
    return None


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
