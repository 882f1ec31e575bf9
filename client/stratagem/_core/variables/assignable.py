"""The methods that write to variables, those in one piece and those in shards."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import Any, NoReturn, TypeAlias

from stratagem._core.tensors.indexed_slices import IndexedSlices
from stratagem_proto.errors import InvalidTypeError, UnimplementedError


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
