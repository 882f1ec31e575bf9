"""A module's dict whose values depend on the replica that looks at it."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, ValuesView
from copy import deepcopy
from typing import Any, TypeVar

Value = TypeVar("Value")


class ReplicaView(dict[str, Value]):
    """A `dict` that is read through the `__getitem__` and `get` of its subclass.

    It is one because torch checks for it. Copies of it, and so copies of the module, are plain
    dicts that know of no strategy.
    """

    def __iter__(self) -> Iterator[str]:
        # Defined so that dict(self) and {**self} do not look into the base class.
        return super().__iter__()

    def items(self) -> ItemsView[str, Value]:  # type: ignore[override] # not dict's own
        return ItemsView(self)

    def values(self) -> ValuesView[Value]:  # type: ignore[override] # not dict's own
        return ValuesView(self)

    def copy(self) -> dict[str, Value]:
        return dict(self.items())

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Value]:
        return {key: deepcopy(value, memo) for key, value in self.items()}

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return dict, (self.copy(),)
