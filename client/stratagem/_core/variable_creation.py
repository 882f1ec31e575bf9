"""What a new variable is called, starts with, and which functions make it.

A creator takes the next creator and the keyword arguments of the variable. The innermost sees the
call first; the last one makes a plain local variable.
Spec: VAR-1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from stratagem._core.device_names import nesting_error
from stratagem._core.options import VariableAggregation, VariableSynchronization
from stratagem._core.tensors import TensorStandIn
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from stratagem._core.variables import Variable


@dataclass(frozen=True)
class VariableTraits:
    """What a variable is called and how it is meant to be used."""

    name: str
    trainable: bool
    synchronization: VariableSynchronization
    aggregation: VariableAggregation

    @classmethod
    def with_defaults(
        cls,
        name: str | None = None,
        trainable: bool | None = None,
        synchronization: VariableSynchronization | None = None,
        aggregation: VariableAggregation | None = None,
    ) -> VariableTraits:
        """Return the traits with open ones filled in.

        Raises:
            InvalidArgumentError: A mode is not a member of its enumeration. Spec: VAR-15, VAR-19,
                VAR-21, VAR-22.
        """
        name = name or "Variable"
        synchronization = synchronization or VariableSynchronization.AUTO
        aggregation = aggregation or VariableAggregation.NONE
        require_member(VariableSynchronization, synchronization, name)
        require_member(VariableAggregation, aggregation, name)
        if trainable is None:
            trainable = synchronization is not VariableSynchronization.ON_READ
        return cls(name, trainable, synchronization, aggregation)


def require_member(enumeration: type[Enum], mode: object, name: str) -> None:
    """Check that a mode is a member of its enumeration.

    Args:
        enumeration: The enumeration.
        mode: What the user passed.
        name: Name of the variable, for the message.

    Raises:
        InvalidArgumentError: It is not. Spec: VAR-21, VAR-22.
    """
    if not isinstance(mode, enumeration):
        kind = enumeration.__name__.removeprefix("Variable").lower()
        raise InvalidArgumentError(
            f"Invalid variable {kind} mode: {mode!r} for variable {name!r}; pass a "
            f"member of {enumeration.__name__}"
        )


NextCreator = Callable[..., "Variable"]
"""The rest of the chain; takes keyword arguments."""

Creator = Callable[..., "Variable"]
"""A link of the chain: takes a `NextCreator` and keyword arguments."""


class _Creators(threading.local):
    def __init__(self) -> None:
        self.stack: tuple[Creator, ...] = ()


_creators = _Creators()


def creators() -> tuple[Creator, ...]:
    """Return the creators of this thread, outermost first."""
    return _creators.stack


def clear_creators() -> None:
    """Leave all scopes of creators of this thread."""
    _creators.stack = ()


def create(last: NextCreator, **kwargs: object) -> Variable:
    """Make a variable by way of the creators of this thread."""
    step: NextCreator = last
    for creator in _creators.stack:
        step = partial(creator, step)
    return step(**kwargs)


class creator_scope(AbstractContextManager[None]):
    """Scope in which variables are created by `added`, the last one first.

    Attributes:
        inside: The creators of the thread while nothing else is entered in it.

    Raises:
        ContextError: On leaving: a scope opened inside is still open. This one can be left once
            that is closed. Spec: CTX-13.
    """

    def __init__(self, *added: Creator) -> None:
        self._added = added

    def __enter__(self) -> None:
        self._outer = _creators.stack
        self.inside = (*self._outer, *self._added)
        _creators.stack = self.inside

    def __exit__(self, *_: object) -> None:
        if _creators.stack is not self.inside:
            raise nesting_error("Variable creator")
        _creators.stack = self._outer


def initial_tensor(
    value: Any, dtype: torch.dtype | None, shape: Sequence[int] | None
) -> torch.Tensor:
    """Return the initial value of a variable as a tensor.

    Raises:
        InvalidArgumentError: It has another shape than `shape`, or it is sparse or without
            contents, or None.
        InvalidTypeError: It cannot become a tensor of the dtype.
    """
    if callable(value) and not isinstance(value, torch.Tensor | TensorStandIn):
        value = value()
    if isinstance(value, TensorStandIn):
        value = value._operand()
    tensor = _as_tensor(value, "The initial value of a variable")
    if dtype is not None:
        if not torch.can_cast(tensor.dtype, dtype):
            raise InvalidTypeError(
                f"The initial value of a variable of dtype {dtype} cannot be of "
                f"{tensor.dtype}; leave dtype out, or convert the value"
            )
        tensor = torch.as_tensor(value, dtype=dtype)
    require_dense(tensor, "The initial value of a variable")
    if shape is not None and tuple(tensor.shape) != tuple(shape):
        raise InvalidArgumentError(
            f"The initial value has shape {tuple(tensor.shape)}, but shape="
            f"{tuple(shape)} was asked for; make them equal or leave shape out"
        )
    return tensor


def require_dense(tensor: torch.Tensor, what: str) -> None:
    """Check that a tensor has contents that a variable can have.

    Args:
        tensor: The tensor.
        what: What messages call it.

    Raises:
        InvalidArgumentError: It is sparse, or on the meta device.
    """
    if tensor.layout is not torch.strided:
        raise InvalidArgumentError(
            f"{what} has the layout {tensor.layout}, but variables are dense; convert "
            "it with .to_dense()"
        )
    if tensor.is_meta:
        raise InvalidArgumentError(
            f"{what} is on the meta device and has no contents; make it on the CPU, or "
            "give it memory by to_empty() and initialise it before the scope closes"
        )


class Written(Protocol):
    """What a value is written into."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype: ...


def operand(variable: Written, value: Any) -> torch.Tensor:
    """Return `value` as a tensor that can be written into `variable`.

    Raises:
        InvalidArgumentError: Shape or dtype differ from the variable's, or the value is None, too
            large, or a `PerReplica` outside of a replica.
        InvalidTypeError: It is no tensor and cannot become one of the dtype.
    """
    if isinstance(value, TensorStandIn):
        value = value._operand()
    tensor = _converted(variable, value, variable.dtype)
    if tensor.shape != variable.shape:
        raise InvalidArgumentError(
            f"Variable {variable.name!r} has shape {tuple(variable.shape)}, but the "
            f"value to be written has shape {tuple(tensor.shape)}; the shapes must be "
            "equal, nothing is broadcast"
        )
    return tensor


def _converted(variable: Written, value: Any, dtype: torch.dtype) -> torch.Tensor:
    tensor = _as_tensor(value, f"What is written into variable {variable.name!r}")
    if tensor.dtype == dtype:
        return tensor
    given = isinstance(value, torch.Tensor)
    if given or not torch.can_cast(tensor.dtype, dtype):
        kind = InvalidArgumentError if given else InvalidTypeError
        raise kind(
            f"Variable {variable.name!r} has dtype {dtype}, but the value to be "
            f"written has dtype {tensor.dtype}; convert it with .to({dtype})"
        )
    try:
        return torch.as_tensor(value, dtype=dtype)
    except RuntimeError as error:
        raise InvalidArgumentError(
            f"Variable {variable.name!r} has dtype {dtype}, which does not hold the "
            f"value to be written ({error}); make the variable of a wider dtype"
        ) from error


def _as_tensor(value: Any, what: str) -> torch.Tensor:
    expected = "pass a tensor, an array, a number or a nested list of numbers"
    if value is None:
        raise InvalidArgumentError(f"{what} is None; {expected}")
    if type(value) is torch.Tensor:
        return value
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidTypeError(
            f"{what} cannot be a {type(value).__name__} like this one "
            f"({str(error).splitlines()[0]}); {expected}"
        ) from error
