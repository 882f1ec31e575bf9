"""What stands in for a tensor: torch functions and Python's operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stratagem._core.tensors.arrays import as_array
from stratagem._core.tensors.torch_writes import written


class TensorStandIn:
    """An object that torch functions take in place of a tensor.

    A subclass says by `_operand` which tensor it stands for at the moment, and by `_target` which
    one a torch function that writes may write to.
    """

    def _operand(self) -> Any:
        raise NotImplementedError

    def _target(self, function: str) -> Any:
        """Return the tensor that a torch function may write to.

        Args:
            function: The function: `add_`, or `add` with `out=`.
        """
        return self._operand()

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name, keywords = func.__name__, kwargs or {}
        places = written(func, args, keywords)
        if not places:
            rest = {key: _opened(value) for key, value in keywords.items()}
            return func(*map(_opened, args), **rest)

        def argument(place: int | str, value: Any) -> Any:
            return _targeted(value, name) if place in places else _opened(value)

        return func(
            *(argument(place, value) for place, value in enumerate(args)),
            **{place: argument(place, value) for place, value in keywords.items()},
        )


def _opened(value: Any) -> Any:
    if isinstance(value, TensorStandIn):
        return value._operand()
    if type(value) in (tuple, list):
        return type(value)(_opened(item) for item in value)
    return value


def _targeted(value: Any, function: str) -> Any:
    if isinstance(value, TensorStandIn):
        return value._target(function)
    if type(value) in (tuple, list):
        return type(value)(_targeted(item, function) for item in value)
    return value


class Operators(TensorStandIn):
    """Python's operators, applied to the tensor that the object stands for."""

    def __getitem__(self, index: Any) -> Any:
        return self._operand()[_opened(index)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._operand())

    def __len__(self) -> int:
        return len(self._operand())

    def __contains__(self, item: Any) -> bool:
        return item in self._operand()

    def _detached(self) -> Any:
        # torch warns where a number is taken out of what records gradients.
        value = self._operand()
        return value.detach() if isinstance(value, torch.Tensor) else value

    def __bool__(self) -> bool:
        return bool(self._detached())

    def __int__(self) -> int:
        return int(self._detached())

    def __float__(self) -> float:
        return float(self._detached())

    def __complex__(self) -> complex:
        return complex(self._detached())

    def __index__(self) -> int:
        return int(self._detached().__index__())

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        value = self._detached()
        if isinstance(value, torch.Tensor):
            value = as_array(value)
        return np.array(value, dtype=dtype)

    def __neg__(self) -> Any:
        return -self._operand()

    def __pos__(self) -> Any:
        return +self._operand()

    def __abs__(self) -> Any:
        return abs(self._operand())

    def __invert__(self) -> Any:
        return ~self._operand()

    def __add__(self, other: Any) -> Any:
        return self._operand() + other

    def __radd__(self, other: Any) -> Any:
        return other + self._operand()

    def __sub__(self, other: Any) -> Any:
        return self._operand() - other

    def __rsub__(self, other: Any) -> Any:
        return other - self._operand()

    def __mul__(self, other: Any) -> Any:
        return self._operand() * other

    def __rmul__(self, other: Any) -> Any:
        return other * self._operand()

    def __truediv__(self, other: Any) -> Any:
        return self._operand() / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self._operand()

    def __floordiv__(self, other: Any) -> Any:
        return self._operand() // other

    def __rfloordiv__(self, other: Any) -> Any:
        return other // self._operand()

    def __mod__(self, other: Any) -> Any:
        return self._operand() % other

    def __rmod__(self, other: Any) -> Any:
        return other % self._operand()

    def __pow__(self, other: Any) -> Any:
        return self._operand() ** other

    def __rpow__(self, other: Any) -> Any:
        return other ** self._operand()

    def __matmul__(self, other: Any) -> Any:
        return self._operand() @ other

    def __rmatmul__(self, other: Any) -> Any:
        return other @ self._operand()

    def __and__(self, other: Any) -> Any:
        return self._operand() & other

    def __rand__(self, other: Any) -> Any:
        return other & self._operand()

    def __or__(self, other: Any) -> Any:
        return self._operand() | other

    def __ror__(self, other: Any) -> Any:
        return other | self._operand()

    def __xor__(self, other: Any) -> Any:
        return self._operand() ^ other

    def __rxor__(self, other: Any) -> Any:
        return other ^ self._operand()

    def __lt__(self, other: Any) -> Any:
        return self._operand() < other

    def __le__(self, other: Any) -> Any:
        return self._operand() <= other

    def __gt__(self, other: Any) -> Any:
        return self._operand() > other

    def __ge__(self, other: Any) -> Any:
        return self._operand() >= other

    def __eq__(self, other: object) -> Any:
        return self._operand() == other

    def __ne__(self, other: object) -> Any:
        return self._operand() != other

    __hash__ = object.__hash__
