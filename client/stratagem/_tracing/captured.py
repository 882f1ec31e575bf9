"""What the code of an optimizer uses besides its param groups and its state."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from types import FunctionType
from typing import Any

import torch
from torch.optim import Optimizer

from stratagem._core.variables import Variable
from stratagem._tracing.lifting import Lifter
from stratagem._tracing.source import definition_of, refused

# Attributes of every optimizer that do not change what a step does, or that a trace replaces.
_TORCHS_OWN = frozenset(vars(Optimizer([torch.zeros(1)], {}))) - {"defaults"}
_OF_SCHEDULERS = frozenset({"step", "_opt_called", "_step_count", "_with_counter"})
# Methods that no step calls.
_NO_STEPS = frozenset({"add_param_group", "zero_grad", "state_dict", "load_state_dict"})


class _Constants:
    """Takes what optimizers capture for constants; a changed one leads to another signature."""

    def __init__(self) -> None:
        self.signature: list[Hashable] = []

    def number(self, number: int | float, label: str) -> Any:
        self.signature.append((type(number), number))
        return number

    def variable(self, variable: Variable, label: str) -> Any:
        raise refused(
            f"the optimizer uses the variable {variable.name!r} as {label}",
            "keep what its steps need in self.state and in the param groups",
        )

    def tensor(self, tensor: torch.Tensor, label: str) -> Any:
        content = tensor.item() if tensor.numel() == 1 else (id(tensor), tensor._version)
        self.signature.append((tensor.dtype, tensor.shape, content))
        return tensor


class _OptimizerLifter(Lifter):
    def __init__(self, constants: _Constants, bases: tuple[type, ...]) -> None:
        super().__init__(constants)
        self._bases = bases

    def _constant(self, value: Any) -> Any:
        is_class = isinstance(value, type)
        if is_class and (value in self._bases or issubclass(value, BaseException)):
            # The attributes of the bases are visited by themselves.
            self._signature.append(value)
            return self._remember(value, value)
        return super()._constant(value)


class Captured:
    """What a step of an optimizer captures, with copies of it for a trace.

    Functions are copied as those of `extended.update`, so that they may use `math` on numbers that
    are not known yet. What they capture are constants of the program.

    Attributes:
        is_predictable: Whether all of it was seen, so that steps with equal keys do the same.
        key: Describes all that was seen.
        kind: The class of the optimizer.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.kind = type(optimizer)
        constants = _Constants()
        self._lifter = _OptimizerLifter(constants, self.kind.__mro__)
        self._methods = dict(self._lifted_methods())
        self._attributes = dict(self._lifted_attributes())
        self.is_predictable = self._lifter.predictable
        self.key = tuple(constants.signature)
        self._before = self._lifter.contents()

    def _lifted_methods(self) -> Iterator[tuple[str, Any]]:
        for base in reversed(self.kind.__mro__):
            if is_torchs(base.__module__) or base is object:
                continue
            for name, attribute in vars(base).items():
                if name in _NO_STEPS or (name.startswith("__") and name != "__call__"):
                    continue
                yield name, self._lifted_method(attribute, name)

    def _lifted_method(self, attribute: Any, name: str) -> Any:
        match attribute:
            case staticmethod():
                return staticmethod(self._lifter.lift(attribute.__func__, name))
            case classmethod():
                return classmethod(self._lifter.lift(attribute.__func__, name))
            case property():
                return property(self._lifter.lift(attribute.fget, name))
        return self._lifter.lift(plain_function(attribute), name)

    def _lifted_attributes(self) -> Iterator[tuple[str, Any]]:
        for name, value in vars(self._optimizer).items():
            if name not in _TORCHS_OWN and name not in _OF_SCHEDULERS:
                yield name, self._lifter.lift(value, f"self.{name}")

    def copy(self, groups: list[dict[str, Any]], state: Mapping[Any, Any]) -> Any:
        """Return a copy of the optimizer that has these groups and this state."""
        kind = type(self.kind.__name__, (self.kind,), dict(self._methods))
        copy: Any = object.__new__(kind)
        vars(copy).update(vars(self._optimizer))
        vars(copy).pop("step", None)
        vars(copy).update(self._attributes)
        vars(copy).update(param_groups=groups, state=state)
        return copy

    def step_of(self, copy: Any) -> Callable[[Any], object]:
        """Return the function that takes the steps of a copy."""
        return plain_function(type(copy).step)  # type: ignore[no-any-return]

    def require_unchanged(self, copy: Any) -> None:
        """Check that a step has changed nothing but groups and state.

        Raises:
            UpdateFunctionError: It has changed something that servers do not have.
        """
        location = definition_of(plain_function(self.kind.step))
        self._lifter.require_unchanged(self._before, location)
        for name, value in vars(copy).items():
            if name in _TORCHS_OWN:
                continue
            known = self._attributes.get(name, getattr(self._optimizer, name, None))
            if value is not known:
                raise refused(
                    f"a step of {self.kind.__name__} assigns self.{name}, which servers do not "
                    "have",
                    "keep it in self.state[parameter]",
                    location,
                )


def is_torchs(module: str) -> bool:
    """Return whether a module is one of PyTorch."""
    return module.split(".")[0] == "torch"


def plain_function(function: Any) -> Any:
    """Return a function without what torch has wrapped around it: `no_grad`, hooks, profiling."""
    while (
        isinstance(function, FunctionType)
        and hasattr(function, "__wrapped__")
        and is_torchs(function.__globals__["__name__"])
    ):
        function = function.__wrapped__
    return function
