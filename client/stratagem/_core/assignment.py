"""The methods that write to variables: as a whole, by rows, and by coordinates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

import torch

from stratagem._core.tensors import IndexedSlices, integers
from stratagem._core.variable_creation import Written, operand
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError, UnimplementedError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy


class Write(Enum):
    """The ways to write a variable; the value is the name of the method."""

    ASSIGN = "assign"
    ASSIGN_ADD = "assign_add"
    ASSIGN_SUB = "assign_sub"
    SCATTER_ADD = "scatter_add"
    SCATTER_SUB = "scatter_sub"
    SCATTER_MUL = "scatter_mul"
    SCATTER_DIV = "scatter_div"
    SCATTER_MIN = "scatter_min"
    SCATTER_MAX = "scatter_max"
    SCATTER_UPDATE = "scatter_update"


_Refusal: TypeAlias = Callable[[Any, Any], NoReturn]


def _augmented(operator: str, remedy: str) -> _Refusal:
    # Without it, Python would bind the name to a tensor and write nothing.
    def refuse(self: Assignable, other: Any) -> NoReturn:
        raise UnimplementedError(
            f"Variable {self.name!r} cannot be written by `variable {operator}= "
            f"value`; write it by `{remedy}`, or make a tensor of another name by "
            f"`out = variable {operator} value`"
        )

    return refuse


class Assignable:
    """What can be written, as a whole and by rows."""

    __iadd__: _Refusal = _augmented("+", "variable.assign_add(value)")
    __isub__: _Refusal = _augmented("-", "variable.assign_sub(value)")
    __imul__: _Refusal = _augmented("*", "variable.assign(variable * value)")
    __imatmul__: _Refusal = _augmented("@", "variable.assign(variable @ value)")
    __itruediv__: _Refusal = _augmented("/", "variable.assign(variable / value)")
    __ifloordiv__: _Refusal = _augmented("//", "variable.assign(variable // value)")
    __imod__: _Refusal = _augmented("%", "variable.assign(variable % value)")
    __ipow__: _Refusal = _augmented("**", "variable.assign(variable ** value)")
    __iand__: _Refusal = _augmented("&", "variable.assign(variable & value)")
    __ior__: _Refusal = _augmented("|", "variable.assign(variable | value)")
    __ixor__: _Refusal = _augmented("^", "variable.assign(variable ^ value)")

    @property
    @abstractmethod
    def name(self) -> str:
        """The name."""

    @abstractmethod
    def _written(self, write: Write, value: Any, read_value: bool) -> Any:
        """Carry out a write of the whole; return what `assign` returns."""

    @abstractmethod
    def _scattered(self, write: Write, delta: IndexedSlices) -> Any:
        """Carry out a write of rows; return what `scatter_add` returns."""

    def assign(
        self,
        value: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Replace the value.

        In a replica context the values of all replicas are combined as `aggregation` says, and
        every replica has to make the call.

        Args:
            value: Tensor of this variable's shape and dtype, or a number, array or list that can be
                converted to its dtype.
            use_locking: Accepted and ignored.
            name: Accepted and ignored.
            read_value: Whether to return the new value; otherwise None. A `ShardedVariable` ignores
                it.

        Returns:
            Something to be used as a tensor of the new value. With one copy it is the variable.
            With several it is a snapshot: in a replica context a tensor, otherwise `Mirrored`; of
            `synchronization=ON_READ` what a read would give.

        Raises:
            InvalidArgumentError: Shape or dtype differ; or in a replica context the variable has no
                aggregation.
            InvalidTypeError: `value` is no tensor and cannot become one.
            ContextError: Another strategy is in charge.

        Shards are written beside each other, and others may see a mixture meanwhile.

        Spec: VWR-1 to VWR-22, SHV-6, SHV-16.
        """
        return self._written(Write.ASSIGN, value, read_value)

    def assign_add(
        self,
        value: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Add `value`; otherwise as `assign`. Spec: VWR-11."""
        return self._written(Write.ASSIGN_ADD, value, read_value)

    def assign_sub(
        self,
        value: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Subtract `value`; otherwise as `assign`. Spec: VWR-11."""
        return self._written(Write.ASSIGN_SUB, value, read_value)

    def scatter_add(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Add rows; repeated ones add up. Spec: VSC-1 to VSC-5, SHV-10.

        Args:
            sparse_delta: The rows; values have this variable's dtype. Indices of several dimensions
                are taken one after the other.
            use_locking: Accepted and ignored.
            name: Accepted and ignored.

        Raises:
            InvalidTypeError: `sparse_delta` is not an `IndexedSlices`.
            InvalidArgumentError: The rows do not fit.
            UnimplementedError: The shards of a `ShardedVariable` are not the layout that a strategy
                makes: as even as possible, the larger ones first.
        """
        return self._scatter(Write.SCATTER_ADD, sparse_delta)

    def scatter_sub(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Subtract rows; otherwise as `scatter_add`."""
        return self._scatter(Write.SCATTER_SUB, sparse_delta)

    def scatter_mul(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Multiply rows; otherwise as `scatter_add`."""
        return self._scatter(Write.SCATTER_MUL, sparse_delta)

    def scatter_div(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Divide rows; otherwise as `scatter_add`."""
        return self._scatter(Write.SCATTER_DIV, sparse_delta)

    def scatter_min(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Take the smaller elements of rows; otherwise as `scatter_add`."""
        return self._scatter(Write.SCATTER_MIN, sparse_delta)

    def scatter_max(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Take the larger elements of rows; otherwise as `scatter_add`."""
        return self._scatter(Write.SCATTER_MAX, sparse_delta)

    def scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Replace rows; otherwise as `scatter_add`."""
        return self._scatter(Write.SCATTER_UPDATE, sparse_delta)

    def _scatter(self, write: Write, delta: IndexedSlices) -> Any:
        self._require_slices(write.value, delta)
        return self._scattered(write, delta.flat)

    def _require_slices(self, method: str, delta: object) -> None:
        if not isinstance(delta, IndexedSlices):
            raise InvalidTypeError(
                f"Variable {self.name!r}: {method} takes IndexedSlices, not "
                f"{type(delta).__name__}; use assign for a whole tensor"
            )


_MOST = {Write.SCATTER_MIN: True, Write.SCATTER_MAX: False}


class Coordinates(NamedTuple):
    """Elements of a tensor; with fewer coordinates than it has dimensions, whole parts of it.

    Attributes:
        coordinates: The first of each, the second one, ...; int64 vectors on one device.
        batch: The shape in which they were given.
    """

    coordinates: tuple[torch.Tensor, ...]
    batch: torch.Size

    @classmethod
    def checked(cls, given: Any, variable: Written) -> Coordinates:
        """Check coordinates that a program asks for.

        Args:
            given: Integers of shape `[..., n]`: n coordinates each.
            variable: What they are coordinates in.

        Raises:
            InvalidTypeError: They are no integers.
            InvalidArgumentError: There is no such element.
        """
        found = integers(given, variable.name)
        depth = found.shape[-1] if found.dim() else 0
        sizes = variable.shape[:depth]
        if not 0 < depth <= len(variable.shape):
            raise InvalidArgumentError(
                f"indices of shape {tuple(found.shape)} name elements of {variable.name!r}, of "
                f"shape {tuple(variable.shape)}; their last dimension has 1 to "
                f"{len(variable.shape)} coordinates"
            )
        flat = found.reshape(-1, depth)
        outside = (flat < 0) | (flat >= torch.tensor(sizes, device=flat.device))
        if outside.any():
            first = flat[outside.any(1)][0].tolist()
            raise InvalidArgumentError(
                f"{variable.name!r} of shape {tuple(variable.shape)} has no element {first}"
            )
        return cls(tuple(flat.unbind(1)), found.shape[:-1])

    @classmethod
    def checked_batches(cls, slices: IndexedSlices, variable: Written) -> Coordinates:
        """Return those of slices whose last dimension of indices is one of the variable.

        The dimensions before it are the variable's own.
        """
        sizes = slices.indices.shape
        places = [torch.arange(size, device=slices.device) for size in sizes[:-1]]
        before = torch.meshgrid(*places, torch.arange(sizes[-1]), indexing="ij")[:-1]
        return cls.checked(torch.stack([*before, slices.indices.to(torch.int64)], -1), variable)

    def values(self, given: Any, variable: Written) -> torch.Tensor:
        """Return what is to be written there, of shape `[number of elements, ...]`.

        Raises:
            InvalidArgumentError: The shape or the dtype is another one.
            InvalidTypeError: It cannot become a tensor of the variable's dtype.
        """
        part = variable.shape[len(self.coordinates) :]
        whole = _Part(variable.name, torch.Size((*self.batch, *part)), variable.dtype)
        return operand(whole, given).detach().reshape(-1, *part)

    def places(self, shape: Sequence[int]) -> torch.Tensor:
        """Return where they are among all that have as many coordinates in that shape."""
        places, *others = self.coordinates
        for size, coordinate in zip(shape[1:], others, strict=False):
            places = places * size + coordinate
        return places

    def rows(self, write: Write, values: torch.Tensor, shape: Sequence[int]) -> IndexedSlices:
        """Return the rows of a variable of this shape by which values are added or compared."""
        if len(self.coordinates) == 1:
            return IndexedSlices(values, self.coordinates[0])
        numbers, rows = self.coordinates[0].unique(return_inverse=True)
        changed = values.new_full((len(numbers), *shape[1:]), _neutral(write, values.dtype))
        parts = changed.flatten(0, len(self.coordinates) - 1)
        where = self._replace(coordinates=(rows, *self.coordinates[1:])).places(shape)
        if write in _MOST:
            each = where.view(-1, *[1] * (values.dim() - 1)).expand_as(values)
            parts.scatter_reduce_(0, each, values, "amin" if _MOST[write] else "amax")
        else:
            parts.index_add_(0, where, values)
        return IndexedSlices(changed, numbers)


class _Part(NamedTuple):
    name: str
    shape: torch.Size
    dtype: torch.dtype


def _neutral(write: Write, dtype: torch.dtype) -> float:
    """Return what leaves elements as they are."""
    if write not in _MOST:
        return 0
    if dtype.is_floating_point:
        return float("inf") if _MOST[write] else float("-inf")
    limits = torch.iinfo(dtype)
    return limits.max if _MOST[write] else limits.min


class ElementAccess:
    """The methods of a variable that read and write elements by their coordinates.

    Elements are written where there is one copy. Spec: VRD-14, VSC-8.
    """

    if TYPE_CHECKING:
        # What variables have.
        _strategy: AnyStrategy | None

        @property
        def name(self) -> str: ...

        @property
        def shape(self) -> torch.Size: ...

        @property
        def dtype(self) -> torch.dtype: ...

        def _operand(self) -> torch.Tensor: ...

        def _write(self, write: Write, value: Any) -> None: ...

        def _result(self) -> Any: ...

        def _require_slices(self, method: str, delta: object) -> None: ...

    def gather_nd(self, indices: Any, name: str | None = None) -> torch.Tensor:
        """Return elements, or whole parts, by their first coordinates.

        Args:
            indices: Integers of shape `[..., n]`: n coordinates each.
            name: Accepted and ignored.

        Returns:
            A tensor of shape `indices.shape[:-1] + shape[n:]`, differentiable with respect to the
            value.

        Raises:
            InvalidTypeError: They are no integers.
            InvalidArgumentError: There is no such element.

        Spec: VRD-14.
        """
        asked = Coordinates.checked(indices, self)
        found = self._operand()[asked.coordinates]
        return found.reshape(*asked.batch, *self.shape[len(asked.coordinates) :])

    def scatter_nd_add(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Add to elements, or to whole parts; repeated ones add up.

        Args:
            indices: Integers of shape `[..., n]`: the first n coordinates of each.
            updates: Of shape `indices.shape[:-1] + shape[n:]`, as for `assign`.
            name: Accepted and ignored.

        Returns:
            As `assign`.

        Raises:
            InvalidArgumentError: There is no such element, or shape or dtype of `updates` differ.
            InvalidTypeError: `indices` are no integers, or `updates` cannot become a tensor.
            UnimplementedError: There are copies; use `scatter_add`.
        """
        return self._scatter_nd(Write.SCATTER_ADD, indices, updates)

    def scatter_nd_sub(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Subtract from elements; otherwise as `scatter_nd_add`."""
        return self._scatter_nd(Write.SCATTER_SUB, indices, updates)

    def scatter_nd_min(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Take the smaller elements; otherwise as `scatter_nd_add`."""
        return self._scatter_nd(Write.SCATTER_MIN, indices, updates)

    def scatter_nd_max(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Take the larger elements; otherwise as `scatter_nd_add`."""
        return self._scatter_nd(Write.SCATTER_MAX, indices, updates)

    def scatter_nd_update(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Replace elements; otherwise as `scatter_nd_add`."""
        return self._scatter_nd(Write.SCATTER_UPDATE, indices, updates)

    def batch_scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Replace rows of batches.

        Args:
            sparse_delta: Of indices of shape `[..., n]`: their dimensions before the last are the
                variable's own.
            use_locking: Accepted and ignored.
            name: Accepted and ignored.

        Raises:
            InvalidTypeError: `sparse_delta` is not an `IndexedSlices`.
            InvalidArgumentError: The rows do not fit.
            UnimplementedError: There are copies.
        """
        self._require_one_copy("batch_scatter_update")
        self._require_slices("batch_scatter_update", sparse_delta)
        places = Coordinates.checked_batches(sparse_delta, self)
        return self._write_elements(Write.SCATTER_UPDATE, places, sparse_delta.values)

    def _scatter_nd(self, write: Write, indices: Any, updates: Any) -> Any:
        self._require_one_copy(write.value.replace("scatter", "scatter_nd"))
        return self._write_elements(write, Coordinates.checked(indices, self), updates)

    def _write_elements(self, write: Write, places: Coordinates, updates: Any) -> Any:
        values = places.values(updates, self)
        if write is Write.SCATTER_UPDATE and len(places.coordinates) > 1:
            self._replace_elements(places, values)
        else:
            self._write(write, places.rows(write, values, self.shape))
        return self._result()

    def _replace_elements(self, places: Coordinates, values: torch.Tensor) -> None:
        """Replace them where the variable is, which others may write meanwhile."""
        depth = len(places.coordinates)

        def replace(variable: Any, where: torch.Tensor, values: torch.Tensor) -> None:
            parts = variable.value().flatten(0, depth - 1)
            variable.assign(parts.index_copy(0, where, values).reshape(variable.shape))

        assert self._strategy is not None
        where = places.places(self.shape)
        self._strategy.extended.update(self, replace, args=(where, values))

    def _require_one_copy(self, method: str) -> None:
        """Raise UnimplementedError where a method is not defined for copies."""
