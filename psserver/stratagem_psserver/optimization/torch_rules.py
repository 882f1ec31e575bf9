"""Optimizers of torch.optim: made for one step, tried on scratch tensors, and their settings."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs.optimizers import (
    OPTIMIZERS,
    OptimizerRule,
    TypedNumber,
    Value,
    rule_named,
)
from stratagem_proto.programs.update_programs import decode_group
from stratagem_proto.v1.update_program_pb2 import HyperparameterGroup
from stratagem_psserver.optimization.gradients import as_sparse


class SteppingOptimizer(Protocol):
    """What a step needs of an optimizer."""

    def step(self) -> Any: ...


_GUARDED = ("step", "add_param_group")
_AS_IT_IS: AbstractContextManager[None] = nullcontext()


def make_optimizer(
    rule: OptimizerRule, values: Mapping[str, Value], fresh: list[torch.Tensor]
) -> Optimizer:
    """Return an optimizer of one param group with these hyperparameters.

    Args:
        rule: The class of the optimizer.
        values: Hyperparameters of the group.
        fresh: Parameters without state. Adagrad makes their state in its constructor.
    """
    accepted = _keywords(rule)
    made = {
        key: value.made() if isinstance(value, TypedNumber) else value
        for key, value in values.items()
    }
    arguments: dict[str, Any] = {key: value for key, value in made.items() if key in accepted}
    optimizer = _without_compiler(rule)(fresh or [torch.empty(0)], **arguments)
    # AdamW has hyperparameters that its constructor does not take.
    optimizer.param_groups[0].update(made)
    return optimizer


class Prototype:
    """Makes optimizers with the same hyperparameters.

    Each step has an optimizer of its own, since several steps may run at once. It is a copy of the
    first one, because the constructor would check the hyperparameters again.

    Args:
        rule: The class of the optimizers.
        values: Hyperparameters of their param group, which a dry run has accepted.
    """

    def __init__(self, rule: OptimizerRule, values: Mapping[str, Value]) -> None:
        self._rule, self._values = rule, values
        self._first = make_optimizer(rule, values, [])
        group = self._first.param_groups[0]
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            # torch would choose this at each step for tensors in the memory of the CPU.
            group["foreach"] = False

    def optimizer(self, parameters: list[torch.Tensor], fresh: list[torch.Tensor]) -> Optimizer:
        """Return an optimizer of some parameters; the caller sets the state of those that have any.

        Args:
            parameters: All parameters.
            fresh: The parameters without state.
        """
        if self._first.state and fresh:
            # The constructor of this class makes the state of parameters.
            made = make_optimizer(self._rule, self._values, fresh)
        else:
            made = object.__new__(type(self._first))
            vars(made).update(vars(self._first))
            made.state = defaultdict(dict)
        made.param_groups = [{**self._first.param_groups[0], "params": parameters}]
        return made


def take_step(optimizer: SteppingOptimizer, sparse: bool) -> None:
    """Call an optimizer's step, without the process's hooks and without ranges for profilers.

    Args:
        optimizer: The optimizer.
        sparse: Whether a gradient is sparse. Its rows were checked when it arrived, so the checks
            of torch are left out, which would warn.
    """
    kind: Any = type(optimizer)
    with torch.no_grad(), _unchecked() if sparse else _AS_IT_IS:
        _plain_step(kind)(optimizer)


@cache
def _plain_step(kind: type[Any]) -> Callable[[Any], object]:
    plain: Callable[[Any], object] = inspect.unwrap(kind.step)
    return plain


def _unchecked() -> AbstractContextManager[None]:
    unchecked = torch.sparse.check_sparse_tensor_invariants
    return unchecked(False)  # type: ignore[no-untyped-call]  # torch has no type for it


@cache
def _keywords(rule: OptimizerRule) -> frozenset[str]:
    return frozenset(inspect.signature(rule.cls.__init__).parameters)


@cache
def _without_compiler(rule: OptimizerRule) -> type[Optimizer]:
    """Return the class of a rule without its support of `torch.compile`.

    The first object of the original class imports the compiler, which would cost each server
    process much time and memory.
    """
    methods = {name: inspect.unwrap(getattr(rule.cls, name)) for name in _GUARDED}
    return type(rule.cls.__name__, (rule.cls,), methods)


Hyperparameters = tuple[tuple[str, Value], ...]


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
    the learning rate and on state; `are_safe` and `is_safe_number` are about these.

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
    if not rule.steps_rows:
        able = sorted(name for name, each in OPTIMIZERS.items() if each.steps_rows)
        raise InvalidArgumentError(
            f"{rule.cls.__name__} cannot step a {dtype} parameter with a row-sparse gradient; "
            f"row-sparse gradients work with {', '.join(able)}"
        )
    try:
        return StepNeeds(_layout(rule, rest, dtype, True), True)
    except InvalidArgumentError:
        return StepNeeds(_layout(rule, rest, dtype, False), False)


def _layout(
    rule: OptimizerRule, rest: Hyperparameters, dtype: torch.dtype, sparse: bool
) -> StateLayout:
    name = rule.cls.__name__
    try:
        before, after = _step_once(rule, {"lr": 0.5, **dict(rest)}, dtype, sparse)
    except Exception as error:
        kind = "row-sparse" if sparse else "dense"
        raise InvalidArgumentError(
            f"{name} cannot step a {dtype} parameter with a {kind} gradient: {error}"
        ) from error
    if any(tensor.is_sparse for tensor in after.values()):
        raise InvalidArgumentError(f"{name} would keep sparse state")
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


# Bounds of hyperparameters and state within which a step cannot fail once it has begun. torch
# computes with hyperparameters and counts of steps as Python numbers. Extreme ones lead to a
# division by zero, or to a number that a tensor's dtype cannot represent, after some tensors have
# been written. Numbers within these bounds are safe, for any rule.

# float16 is not among them: its largest number is 65504, and a rate divided by a small bias
# correction can be larger.
_WIDE = frozenset({torch.float32, torch.float64, torch.bfloat16})

# The least difference between a decay and 1 is 1e-16; the largest rate divided by it still fits all
# wide dtypes. ASGD raises a product of three numbers to the power of alpha.
_LARGEST = 1e6
_LARGEST_OF = {"alpha": 8.0}

# The scalars in the state of optimizers, and the largest safe number of each.
NUMBERS = {"step": 2.0**53, "mu_product": 1.0, "mu": 1.0, "eta": _LARGEST}


def are_safe(rule: OptimizerRule, values: Mapping[str, Value], dtype: torch.dtype) -> bool:
    """Return whether hyperparameters are safe, so that no step fails because of them.

    Args:
        rule: The optimizer.
        values: Hyperparameters of a param group, which its constructor accepts.
        dtype: The dtype of the parameters.
    """
    defaults = _defaults(rule)
    return dtype in _WIDE and all(
        _is_like(value, defaults.get(key), _LARGEST_OF.get(key, _LARGEST))
        for key, value in values.items()
    )


def is_safe_number(key: str, number: float) -> bool:
    """Return whether a number of an optimizer's state is safe; clients can write any.

    Args:
        key: One of `NUMBERS`.
        number: The number.
    """
    return 0 <= number <= NUMBERS[key]


@cache
def _defaults(rule: OptimizerRule) -> Mapping[str, object]:
    return make_optimizer(rule, {}, []).param_groups[0]


def _is_like(value: Value, default: object, largest: float) -> bool:
    if default is None or isinstance(default, bool):
        return value is None or isinstance(value, bool)
    if isinstance(default, tuple):
        is_pair = isinstance(value, tuple) and len(value) == len(default)
        return is_pair and all(-largest <= each <= largest for each in value)  # type: ignore[union-attr]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and -largest <= value <= largest  # type: ignore[operator]


# Larger groups are not cached; sensible hyperparameters take less.
_MOST_GROUP_BYTES = 4 << 10


class GroupSettings:
    """The hyperparameters of a param group, and what is cached about them.

    Attributes:
        rule: The optimizer.
        values: The hyperparameters by name.
    """

    def __init__(self, rule: OptimizerRule, values: Mapping[str, Value]) -> None:
        self.rule, self.values = rule, values
        self._needs: dict[tuple[torch.dtype, bool], StepNeeds] = {}
        self._safe: dict[torch.dtype, bool] = {}

    def needs(self, dtype: torch.dtype, sparse: bool) -> StepNeeds:
        """Return what a step of a parameter of that dtype needs."""
        key = (dtype, sparse)
        if key not in self._needs:
            self._needs[key] = dry_run(self.rule, self.values, dtype, sparse)
        return self._needs[key]

    def is_safe(self, dtype: torch.dtype) -> bool:
        """Return whether the hyperparameters are safe for parameters of that dtype."""
        if dtype not in self._safe:
            self._safe[dtype] = are_safe(self.rule, self.values, dtype)
        return self._safe[dtype]

    @cached_property
    def prototype(self) -> Prototype:
        """Makes optimizers with these hyperparameters; use it after `needs`, which checks them."""
        return Prototype(self.rule, self.values)


def settings_of(class_name: str, group: HyperparameterGroup) -> GroupSettings:
    """Return the settings of a group, which are cached because most steps repeat them.

    Raises:
        InvalidArgumentError: There is no such class, or it has other hyperparameters.
    """
    encoded = group.SerializeToString()
    is_small = len(encoded) <= _MOST_GROUP_BYTES
    return (_known_settings if is_small else _decoded)(class_name, encoded)


def _decoded(class_name: str, group: bytes) -> GroupSettings:
    rule = rule_named(class_name)
    values = decode_group(rule, HyperparameterGroup.FromString(group))
    return GroupSettings(rule, _complete(rule, values))


_known_settings = lru_cache(maxsize=1024)(_decoded)


def _complete(rule: OptimizerRule, values: Mapping[str, Value]) -> Mapping[str, Value]:
    if missing := hyperparameters_of(rule) - values.keys():
        raise InvalidArgumentError(
            f"a param group of {rule.cls.__name__} comes without {sorted(missing)}; "
            "send all hyperparameters with each step"
        )
    return values
