"""Objects that stand in for a tensor, in torch's functions and under Python's operators.

`IndexedSlices` are some rows of a tensor.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

Places = frozenset[int | str]
"""Positions and keywords of arguments."""

NOTHING: Places = frozenset()
_FIRST: Places = frozenset((0, "input", "self", "tensor"))
_OUT: Places = frozenset(("out",))
_STATISTICS: Places = frozenset((1, 2, "running_mean", "running_var"))
_TABLE: Places = frozenset((1, "weight"))

# What else they write to if the argument in the first place is true.
_SOMETIMES: dict[Callable[..., Any], tuple[int | str, Places]] = {
    F.batch_norm: ("training", _STATISTICS),
    F.instance_norm: ("use_input_stats", _STATISTICS),
    torch.batch_norm: (5, frozenset((3, 4))),
    torch.instance_norm: (5, frozenset((3, 4))),
    F.embedding: ("max_norm", _TABLE),
    F.embedding_bag: ("max_norm", _TABLE),
}


def written(
    function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]
) -> Places:
    """Return which arguments a call of one of torch's functions writes to."""
    if is_in_place(function.__name__) or keywords.get("inplace"):
        return _FIRST
    if "out" in keywords:
        return _OUT
    if function in _SOMETIMES:
        condition, places = _SOMETIMES[function]
        given = args[condition] if isinstance(condition, int) else None
        return places if given or keywords.get(str(condition)) else NOTHING
    return NOTHING


def is_in_place(name: str) -> bool:
    """Return whether a function or method of this name writes to what it is given."""
    return name.endswith("_") and not name.endswith("__")


# NumPy has nothing narrower that holds all of their values.
_WIDER = {torch.complex32: torch.complex64}


def as_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return a tensor's values as an array, which may share its memory.

    NumPy has none of torch's floats but those of 16, 32 and 64 bits of IEEE: bfloat16 and the
    floats of 8 bits become float32, and complex32 complex64, which hold all of their values.
    TensorFlow adds these types to NumPy by a package of its own.
    """
    values = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        return values.numpy()
    except TypeError:
        wider = _WIDER.get(values.dtype, torch.float32)
        if values.layout is not torch.strided:
            raise
        return values.to(wider).numpy()


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


_Binary: TypeAlias = Callable[[Any, Any], Any]


def _binary(function: Callable[[Any, Any], Any]) -> _Binary:
    return lambda self, other: function(self._operand(), other)


def _reflected(function: Callable[[Any, Any], Any]) -> _Binary:
    return lambda self, other: function(other, self._operand())


class Operators(TensorStandIn):
    """Python's operators, applied to the tensor that the object stands for."""

    __add__: _Binary = _binary(operator.add)
    __radd__: _Binary = _reflected(operator.add)
    __sub__: _Binary = _binary(operator.sub)
    __rsub__: _Binary = _reflected(operator.sub)
    __mul__: _Binary = _binary(operator.mul)
    __rmul__: _Binary = _reflected(operator.mul)
    __truediv__: _Binary = _binary(operator.truediv)
    __rtruediv__: _Binary = _reflected(operator.truediv)
    __floordiv__: _Binary = _binary(operator.floordiv)
    __rfloordiv__: _Binary = _reflected(operator.floordiv)
    __mod__: _Binary = _binary(operator.mod)
    __rmod__: _Binary = _reflected(operator.mod)
    __pow__: _Binary = _binary(operator.pow)
    __rpow__: _Binary = _reflected(operator.pow)
    __matmul__: _Binary = _binary(operator.matmul)
    __rmatmul__: _Binary = _reflected(operator.matmul)
    __and__: _Binary = _binary(operator.and_)
    __rand__: _Binary = _reflected(operator.and_)
    __or__: _Binary = _binary(operator.or_)
    __ror__: _Binary = _reflected(operator.or_)
    __xor__: _Binary = _binary(operator.xor)
    __rxor__: _Binary = _reflected(operator.xor)
    __lt__: _Binary = _binary(operator.lt)
    __le__: _Binary = _binary(operator.le)
    __gt__: _Binary = _binary(operator.gt)
    __ge__: _Binary = _binary(operator.ge)

    def __neg__(self) -> Any:
        return -self._operand()

    def __pos__(self) -> Any:
        return +self._operand()

    def __abs__(self) -> Any:
        return abs(self._operand())

    def __invert__(self) -> Any:
        return ~self._operand()

    def __eq__(self, other: object) -> Any:
        return self._operand() == other

    def __ne__(self, other: object) -> Any:
        return self._operand() != other

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

    if TYPE_CHECKING:

        def __hash__(self) -> int: ...

    else:
        # Variables are keys in each step; a method of Python would be called for each of them.
        __hash__ = object.__hash__


class IndexedSlices:
    """Rows of a larger tensor, for instance the gradient of an embedding.

    Attributes:
        values: Tensor of shape `[n, ...]`; row `i` belongs to `indices[i]`. Of a variable or
            another value with several components it is what a read gives where the slices are made.
        indices: Integer tensor of shape `[n]`; repeated indices add up. With more dimensions, as
            `batch_scatter_update` takes it, `values` begins with the same.
        dense_shape: Shape of the whole tensor, or None where it is not known.

    Raises:
        InvalidArgumentError: The shapes do not fit together.
        InvalidTypeError: The indices are no integers, or something is no tensor.
    """

    def __init__(
        self, values: torch.Tensor, indices: torch.Tensor, dense_shape: Sequence[int] | None = None
    ) -> None:
        if isinstance(values, TensorStandIn):
            values = values._operand()
        if isinstance(indices, TensorStandIn):
            indices = indices._operand()
        for name, given in (("values", values), ("indices", indices)):
            if not isinstance(given, torch.Tensor):
                raise InvalidTypeError(
                    f"The {name} of IndexedSlices are a tensor, not {type(given).__name__}; "
                    "convert them with torch.as_tensor()"
                )
        if not indices.dim() or values.shape[: indices.dim()] != indices.shape:
            raise InvalidArgumentError(
                "IndexedSlices need one row of values for each index, but values have "
                f"shape {tuple(values.shape)} and indices {tuple(indices.shape)}"
            )
        if indices.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8):
            raise InvalidTypeError(
                f"The indices of IndexedSlices are integers, not {indices.dtype}; "
                "convert them with .to(torch.int64)"
            )
        self.values = values
        self.indices = indices
        self.dense_shape: torch.Size | None = (
            None if dense_shape is None else torch.Size(dense_shape)
        )

    @classmethod
    def from_sparse(cls, tensor: torch.Tensor) -> IndexedSlices:
        """Return the rows of a `torch.sparse_coo` tensor with one sparse dimension.

        Raises:
            InvalidArgumentError: The tensor is of another kind.
        """
        if tensor.layout is not torch.sparse_coo or tensor.sparse_dim() != 1:
            raise InvalidArgumentError(
                "Only a torch.sparse_coo tensor with exactly one sparse dimension has "
                f"rows; this one has layout {tensor.layout}"
            )
        return cls(tensor._values(), tensor._indices()[0], tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Where the values live."""
        return self.values.device

    @property
    def flat(self) -> IndexedSlices:
        """The same with indices of one dimension."""
        if self.indices.dim() == 1:
            return self
        values = self.values.flatten(0, self.indices.dim() - 1)
        return IndexedSlices(values, self.indices.flatten(), self.dense_shape)

    def to(self, device: torch.device) -> IndexedSlices:
        """Return these rows on `device`."""
        values, indices = self.values.to(device), self.indices.to(device)
        return IndexedSlices(values, indices, self.dense_shape)

    def to_dense(self) -> torch.Tensor:
        """Return the whole tensor, zero where there is no row.

        Raises:
            InvalidArgumentError: `dense_shape` is not known.
        """
        if self.dense_shape is None:
            raise InvalidArgumentError(
                "IndexedSlices without dense_shape cannot become a dense tensor; pass "
                "dense_shape when you make them"
            )
        dense = self.values.new_zeros(self.dense_shape)
        return dense.index_add_(0, self.flat.indices, self.flat.values)

    def __repr__(self) -> str:
        shape = None if self.dense_shape is None else tuple(self.dense_shape)
        return (
            f"IndexedSlices(values={self.values!r}, indices={self.indices!r}, dense_shape={shape})"
        )


_INTEGERS = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}


def require_integers(rows: Any, owner: str) -> None:
    """Check that rows or keys are whole numbers; others would be rounded.

    Args:
        rows: What was asked for.
        owner: The name of the variable or table.

    Raises:
        InvalidTypeError: They are no tensor of integers.
    """
    kind = rows.dtype if isinstance(rows, torch.Tensor) else type(rows).__name__
    if kind not in _INTEGERS:
        raise InvalidTypeError(
            f"{owner!r} is looked up by a tensor of integers, not by {kind}; pass "
            "torch.as_tensor(..., dtype=torch.int64)"
        )


def integers(given: Any, owner: str) -> torch.Tensor:
    """Return what a program asks for, of any shape, as an int64 tensor.

    Raises:
        InvalidTypeError: They are no integers.
    """
    try:
        found = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidTypeError(
            f"{owner!r} is looked up by integers, not by {given!r}, of which no tensor can be made "
            f"({str(error).splitlines()[0]})"
        ) from error
    # An empty list becomes a tensor of floats.
    if found.numel():
        require_integers(found, owner)
    return found.to(torch.int64)


def row_numbers(given: Any, owner: str, total: int) -> torch.Tensor:
    """Return rows that a program asks for as a tensor.

    Args:
        given: Integers, of any shape.
        owner: The name of the variable.
        total: How many rows it has.

    Raises:
        InvalidTypeError: They are no integers.
        InvalidArgumentError: There is no such row.
    """
    rows = integers(given, owner)
    if not rows.numel():
        return rows
    first, last = int(rows.min()), int(rows.max())
    if not 0 <= first <= last < total:
        raise InvalidArgumentError(
            f"rows {first} to {last} of {owner!r} are asked for, but it has the rows 0 "
            f"to {total - 1}"
        )
    return rows
