"""The optimizers that servers run, their hyperparameters, and the names of their state."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

_NOT_NEGATIVE: Final = ("lr", "eps", "weight_decay")


class RowWiseAdagrad(Optimizer):
    """Adagrad that keeps one number for each row of a parameter, in place of one for each element.

    It is `EXACT_ROWWISE_ADAGRAD` of FBGEMM (`rowwise_adagrad` in `fbgemm_gpu/codegen/genscript/
    optimizers.py`), with which TorchRec trains large tables. For a row `w` with the gradient `g`::

        sum += mean((g + weight_decay * w) ** 2)
        multiplier = lr / (sqrt(sum) + eps)
        w = (1 - multiplier * weight_decay) * w - multiplier * g

    A row is what one index of the first dimension selects; of a vector, and of a scalar, each
    element is a row, and the rule is that of `torch.optim.Adagrad`. A sparse gradient steps the
    rows that it has and leaves the others alone, weight decay included.

    Args:
        params: Parameters or param groups.
        lr: The learning rate.
        eps: Added to the root, against division by zero.
        weight_decay: The factor of an L2 penalty.
        maximize: Whether to step along the gradient, and not against it.

    Raises:
        ValueError: A number is negative or no number.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-2,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        for name in _NOT_NEGATIVE:
            if not defaults[name] >= 0:
                raise ValueError(f"{name} is {defaults[name]}; it must be at least 0")
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override] # torch overloads it
        """Step all parameters that have a gradient.

        Args:
            closure: Computes the loss anew and returns it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, group)
        return loss

    def _step_one(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if not state:
            state["sum"] = parameter.new_zeros(parameter.shape[:1])
        if not gradient.is_sparse:
            step_rows(parameter, gradient, state["sum"], group)
            return
        gradient = gradient.coalesce()
        (rows,) = gradient.indices()
        values, sums = parameter.index_select(0, rows), state["sum"].index_select(0, rows)
        step_rows(values, gradient.values(), sums, group)
        parameter.index_copy_(0, rows, values)
        state["sum"].index_copy_(0, rows, sums)


def step_rows(
    rows: torch.Tensor, gradient: torch.Tensor, sums: torch.Tensor, group: Mapping[str, Any]
) -> None:
    """Step rows and their sums in place; `group` has the hyperparameters.

    No operation multiplies and adds at once: torch rounds those differently for the last elements
    of a tensor, so parts of a parameter would come to other bytes than all of it.
    """
    decay, rate = group["weight_decay"], group["lr"]
    if isinstance(rate, np.ndarray):
        # torch divides no array of NumPy by a tensor without NumPy's complaint.
        rate = rate[()]
    if group["maximize"]:
        gradient = -gradient
    squares = (gradient + rows * decay if decay else gradient).square()
    sums.add_(squares.flatten(1).mean(1) if rows.dim() > 1 else squares)
    multiplier = rate / sums.sqrt().add_(group["eps"])
    multiplier = multiplier.view(-1, *[1] * (rows.dim() - 1)) if rows.dim() > 1 else multiplier
    if decay:
        rows.mul_(1 - multiplier * decay)
    rows.sub_(gradient * multiplier)


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
        cls: The class, of `torch.optim` or of this file.
        hyperparameters: Keys of its param groups that travel with each step.
        steps_rows: Whether a step of some rows of a variable is the same as a step of a variable
            that has only these rows.
    """

    cls: type[torch.optim.Optimizer]
    hyperparameters: frozenset[str]
    steps_rows: bool


def _rule(cls: type[torch.optim.Optimizer], *own: str, steps_rows: bool = False) -> OptimizerRule:
    shared = ("lr", "weight_decay", "maximize", "foreach", *_REFUSED_FLAGS)
    return OptimizerRule(cls, frozenset((*shared, *own)), steps_rows)


_by_rows = partial(_rule, steps_rows=True)


# They tie a step to CUDA graphs and to autograd, which end at the process.
_REFUSED_FLAGS = ("capturable", "differentiable")

_ADAM = ("betas", "eps", "amsgrad", "fused", "decoupled_weight_decay")

OPTIMIZERS: Mapping[str, OptimizerRule] = {
    "SGD": _by_rows(torch.optim.SGD, "momentum", "dampening", "nesterov", "fused"),
    "Adam": _by_rows(torch.optim.Adam, *_ADAM),
    "AdamW": _by_rows(torch.optim.AdamW, *_ADAM),
    "SparseAdam": _by_rows(torch.optim.SparseAdam, "betas", "eps"),
    "Adagrad": _by_rows(
        torch.optim.Adagrad, "lr_decay", "eps", "initial_accumulator_value", "fused"
    ),
    "RMSprop": _by_rows(torch.optim.RMSprop, "alpha", "eps", "momentum", "centered"),
    "Adamax": _rule(torch.optim.Adamax, "betas", "eps"),
    "NAdam": _rule(torch.optim.NAdam, "betas", "eps", "momentum_decay", "decoupled_weight_decay"),
    "RAdam": _rule(torch.optim.RAdam, "betas", "eps", "decoupled_weight_decay"),
    "Adadelta": _rule(torch.optim.Adadelta, "rho", "eps"),
    "Rprop": _rule(torch.optim.Rprop, "etas", "step_sizes"),
    "ASGD": _rule(torch.optim.ASGD, "lambd", "alpha", "t0"),
    "RowWiseAdagrad": _by_rows(RowWiseAdagrad, "eps"),
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


# What tells optimizers of one class apart.
_NUMBER = re.compile(r"_\d+$")


class SlotName(NamedTuple):
    """The name of a slot variable, part by part.

    Attributes:
        variable: The name of the variable that it belongs to.
        optimizer: The name of the optimizer, such as "Adam" or "Adam_1".
        key: The name of the state in torch, such as "exp_avg".
    """

    variable: str
    optimizer: str
    key: str

    def __str__(self) -> str:
        return "/".join(self)

    @classmethod
    def parse(cls, name: str) -> SlotName | None:
        """Return the parts of a name; None if it cannot be that of a slot variable.

        Other variables may be named likewise.
        """
        found = cls(*("", "", *name.rsplit("/", 2))[-3:])
        return found if names_optimizer(found.optimizer) else None


def names_optimizer(name: str) -> bool:
    """Return whether an optimizer on the allow-list may have this name."""
    return _NUMBER.sub("", name) in OPTIMIZERS
