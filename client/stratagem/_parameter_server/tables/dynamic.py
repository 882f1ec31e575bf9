"""Tables whose rows are arbitrary keys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import ref

import torch

from stratagem._parameter_server.tables.row_values import added_up
from stratagem._parameter_server.tables.variable import TableVariable
from stratagem._parameter_server.variables.shards import Layout, Routed
from stratagem._parameter_server.variables.split_variable import ValuesOfRows
from stratagem_proto.keys import part_of_keys
from stratagem_proto.rows import ascending_order
from stratagem_proto.v1.variable_pb2 import (
    EVICTION_ORDER_OLDEST,
    EVICTION_ORDER_RAREST,
    DynamicKeys,
    EvictionOrder,
    TableSpec,
)

# The fields of `DynamicKeys` that have no row evicted.
_KEEPS_ROWS = {"admission_count", "part", "parts", "eviction_order"}

NOMINAL_ROWS = 1 << 40
"""How many rows the parameter of a dynamic table says that it has."""

EVICTION_ORDERS: Mapping[str, EvictionOrder] = {
    "oldest": EVICTION_ORDER_OLDEST,
    "rarest": EVICTION_ORDER_RAREST,
}


@dataclass(frozen=True)
class KeyLimits:
    """Which keys get rows, and which rows go again. Spec: the fields of `DynamicKeys`.

    Attributes:
        admit_after: Number of updates of a key from which on it has a row.
        max_idle: Number of writes of the table after which a row that they did not touch goes; None
            for never.
        max_bytes: The most bytes on all servers together; None for no limit.
        max_idle_seconds: For how many seconds a row may be idle before it goes; None for ever.
        evict: Which rows make room for new ones: "oldest" or "rarest".
    """

    admit_after: int = 1
    max_idle: int | None = None
    max_bytes: int | None = None
    max_idle_seconds: float | None = None
    evict: str = "oldest"

    def of_part(self, part: int, parts: int) -> TableSpec:
        """Return what one of the parts of a table is told."""
        return TableSpec(
            dynamic=DynamicKeys(
                admission_count=self.admit_after,
                evict_after_writes=self.max_idle or 0,
                max_bytes=max(1, self.max_bytes // parts) if self.max_bytes else 0,
                part=part,
                parts=parts,
                evict_after_milliseconds=math.ceil((self.max_idle_seconds or 0) * 1000),
                eviction_order=EVICTION_ORDERS[self.evict],
            )
        )


class KeyLayout(Layout):
    """Which part has which keys."""

    @property
    def coding(self) -> None:
        """There may be any keys."""

    def route(self, rows: torch.Tensor) -> list[Routed]:
        """Return for each part which of some keys it has."""
        parts = part_of_keys(rows, len(self.sizes))
        order = ascending_order(parts)
        counts = torch.bincount(parts, minlength=len(self.sizes)).tolist()
        return [Routed(places, rows[places]) for places in order.split(counts)]


class Vocabulary:
    """Numbers keys in the order in which they come."""

    def __init__(self) -> None:
        self._keys = torch.empty(0, dtype=torch.int64)
        self._given: list[ref[torch.Tensor]] = []

    def numbers(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the numbers of distinct keys; new ones get the next numbers."""
        known = torch.isin(keys, self._keys, assume_unique=True)
        self._keys = torch.cat([self._keys, keys[~known]])
        ordered, numbers = self._keys.sort()
        found = numbers[torch.searchsorted(ordered, keys)]
        self._given = [one for one in self._given if one() is not None] + [ref(found)]
        return found

    @property
    def is_in_graphs(self) -> bool:
        """Whether there are graphs whose gradients will go by its numbers."""
        return any(one() is not None for one in self._given)

    def keys(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the keys that have these numbers."""
        return self._keys[numbers]


class DynamicTable(TableVariable):
    """A table whose rows are any int64 keys.

    torch has no sparse tensors of such size, so gradients go by the numbers that this process gives
    to keys, for as long as there are gradients.
    """

    @property
    def is_readable(self) -> bool:
        return False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._vocabulary = Vocabulary()

    @property
    def _is_numbered(self) -> bool:
        """Whether there are gradients by the numbers of keys, or may be yet."""
        leaves = () if self._hosted is None else self._hosted.leaves
        has_gradients = any([leaf.grad is not None and leaf.grad._nnz() for leaf in leaves])
        return has_gradients or self._vocabulary.is_in_graphs

    def keys(self, limit: int) -> Iterator[torch.Tensor]:
        """Yield the keys that have rows, at most so many at a time."""
        for part in self.parts:
            yield from self.store.keys(part, limit)

    def gradient_rows(self, rows: torch.Tensor) -> torch.Tensor:
        with self.pulling:
            if not self._is_numbered:
                self._vocabulary = Vocabulary()
            return self._vocabulary.numbers(rows)

    def stepped_rows(self, gradient: torch.Tensor) -> torch.Tensor | None:
        return self._vocabulary.keys(gradient._indices()[0])

    @cached_property
    def evicts(self) -> bool:
        limits = self.parts[0].spec.table.dynamic
        return any(limited.name not in _KEEPS_ROWS for limited, _ in limits.ListFields())

    def require_rows(self, rows: torch.Tensor) -> None:
        """Any key will do."""

    def _routed(self, gradient: torch.Tensor) -> Sequence[ValuesOfRows]:
        values, numbers = added_up(gradient)
        return self._divided(values, self._vocabulary.keys(numbers))
