"""The rows of tables here: found by key, or by their number in a vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from stratagem_proto.division import PartRows, part_of_keys
from stratagem_proto.errors import DataLossError, InvalidArgumentError, RowIndexError
from stratagem_proto.key_index import KeyIndex, PositionArray
from stratagem_proto.programs.random_rows import InitialValues, round_to_nearest, stored_dtype
from stratagem_proto.rows import put
from stratagem_proto.wire.tensors import decode_dtype
from stratagem_reader.changes import Change
from stratagem_storage.checkpoint.wholes import TablePart, WholeTable

# Space is taken for so many more rows than there are, so that it is seldom taken.
_GROWTH = 1.25

Commit = Callable[[], None]
"""Makes prepared changes, at once and without failing."""


class StoredPart:
    """The stored rows of one part of a table, at the positions that its server has them at.

    Args:
        part: The part, without rows yet.

    Attributes:
        count: How many rows are stored.
    """

    def __init__(self, part: TablePart) -> None:
        spec = part.table.spec
        self.name = spec.name
        self.division = part.rows
        self._vocabulary = None if spec.table.HasField("dynamic") else spec.tensor.shape[0]
        tensor = part.entry.tensor
        self.count = 0
        self._rows = torch.empty(0, *tensor.shape[1:], dtype=decode_dtype(tensor.dtype))
        self._keys = torch.empty(0, dtype=torch.int64)
        self._index = self._new_index(self._keys)
        # Keys that the index has, and whose position may now be another's: they are found in vain.
        self._stale = 0

    def _new_index(self, keys: torch.Tensor) -> KeyIndex | PositionArray:
        if self._vocabulary is None:
            index: KeyIndex | PositionArray = KeyIndex(int(len(keys) * _GROWTH))
        else:
            index = PositionArray(self._vocabulary)
        index.insert(keys, torch.arange(len(keys)))
        return index

    @property
    def keys(self) -> torch.Tensor:
        """The keys of the stored rows; row numbers within the part, if they have a vocabulary."""
        return self._keys[: self.count]

    @property
    def rows(self) -> torch.Tensor:
        """The stored rows."""
        return self._rows[: self.count]

    def find(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the positions of keys; -1 for those that have no row."""
        found = self._index.find(keys, self.keys)
        if self._stale and self._vocabulary is not None:
            is_it = (found >= 0) & (found < self.count)
            is_it &= self._keys.index_select(0, found.where(is_it, 0)) == keys
            found[~is_it] = -1
        return found

    def take(self, positions: torch.Tensor) -> torch.Tensor:
        """Return copies of the rows at some positions."""
        return self._rows.index_select(0, positions)

    def is_unchanged(self, keys: Change, rows: Change) -> bool:
        """Return whether neither changes anything."""
        has_none = [one.numbers is not None and not len(one.numbers) for one in (keys, rows)]
        return all(has_none) and rows.count == self.count

    def prepared(self, keys: Change, rows: Change, where: str) -> Commit:
        """Take memory for a change, and check it; nothing that is read changes.

        Args:
            keys: What changes in the keys.
            rows: What changes in the rows.
            where: Whose change it is, for messages.

        Raises:
            DataLossError: Keys repeat, or are not in the vocabulary.
        """
        count = rows.count
        changed = keys.values
        if (
            self._vocabulary is not None
            and not ((changed >= 0) & (changed < self._vocabulary)).all()
        ):
            raise self._unsound(where, "keys that are not in its vocabulary")
        if len(changed.unique()) < len(changed):
            raise self._unsound(where, "a key twice")
        if keys.numbers is None:
            index: KeyIndex | PositionArray | None = self._new_index(changed)
        else:
            index = self._checked_index(keys, count, where)
        if rows.numbers is not None or keys.numbers is not None:
            self._reserve(count)
        return lambda: self._commit(keys, rows, index)

    def _checked_index(
        self, keys: Change, count: int, where: str
    ) -> KeyIndex | PositionArray | None:
        """Return another index if this one has become mostly stale; check that no key repeats."""
        assert keys.numbers is not None
        positions = self.find(keys.values)
        # One that stands elsewhere already has to go from there.
        is_elsewhere = (positions >= 0) & (positions < count)
        left = positions[is_elsewhere]
        if len(left) and not torch.isin(left, keys.numbers).all():
            raise self._unsound(where, "a key twice")
        more = len(keys.numbers)
        if self._stale + more <= max(count, 1024) and not self._index.more_nbytes(more):
            return None
        whole = torch.empty(count, dtype=torch.int64)
        kept = min(count, self.count)
        whole[:kept] = self._keys[:kept]
        put(whole, keys.numbers, keys.values)
        return self._new_index(whole)

    def _reserve(self, count: int) -> None:
        if count <= min(len(self._keys), len(self._rows)):
            return
        capacity = int(count * _GROWTH)
        keys = self._keys.new_empty(capacity)
        rows = self._rows.new_empty(capacity, *self._rows.shape[1:])
        keys[: self.count], rows[: self.count] = self.keys, self.rows
        self._keys, self._rows = keys, rows

    def _commit(self, keys: Change, rows: Change, index: KeyIndex | PositionArray | None) -> None:
        if keys.numbers is None:
            self._keys = keys.values
        else:
            before = keys.numbers[keys.numbers < self.count]
            # Each may have gone, or have moved.
            self._stale += len(before) + max(0, self.count - rows.count)
            put(self._keys, keys.numbers, keys.values)
            if index is None:
                self._index.insert(keys.values, keys.numbers)
        if index is not None:
            self._index, self._stale = index, 0
        if rows.numbers is None:
            self._rows = rows.values
        else:
            put(self._rows, rows.numbers, rows.values)
        self.count = rows.count
        if len(self._keys) != len(self._rows):
            # One came whole, and the other not.
            self._keys, self._rows = self.keys.clone(), self.rows.clone()

    def _unsound(self, where: str, what: str) -> DataLossError:
        return DataLossError(f"{where!r} has {what} in {self.name!r}", variable=self.name)


class ReplicaTable:
    """A table whose stored rows are here; others have their initial values.

    Args:
        whole: Its description.

    Attributes:
        name: Its name.
        parts: The parts of the servers, in their order.
    """

    def __init__(self, whole: WholeTable) -> None:
        self.name, self.spec = whole.name, whole.spec
        self.is_dynamic = whole.is_dynamic
        self.parts: Sequence[StoredPart] = [StoredPart(part) for part in whole.parts]
        self.row_shape = tuple(whole.spec.tensor.shape[1:])
        self.dtype = decode_dtype(whole.spec.tensor.dtype)
        self._initial = InitialValues(whole.spec)
        self._stored = stored_dtype(whole.spec)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape; of a table of any keys, with 0 rows."""
        return tuple(self.spec.tensor.shape)

    @property
    def form(self) -> object:
        """That it is a table, its shape and its dtype."""
        return True, self.shape, self.dtype

    @property
    def count(self) -> int:
        """The number of stored rows."""
        return sum(part.count for part in self.parts)

    @property
    def nbytes(self) -> int:
        """The bytes of the stored rows and their keys."""
        return sum(part.rows.nbytes + part.keys.nbytes for part in self.parts)

    def keys(self) -> torch.Tensor:
        """Return the keys of all stored rows."""
        return torch.cat([part.division.whole(part.keys) for part in self.parts])

    def look_up(self, keys: torch.Tensor, default: torch.Tensor | float | None) -> torch.Tensor:
        """Return the rows of keys.

        Args:
            keys: An int64 vector.
            default: What keys without a row get; None for what training would begin with.

        Raises:
            RowIndexError: The vocabulary has no such row.
        """
        if not self.is_dynamic:
            self._require_rows(keys)
        if len(self.parts) == 1:
            positions = self.parts[0].find(self.parts[0].division.local(keys))
            if not len(keys) or int(positions.numpy().min()) >= 0:
                return self.parts[0].take(positions).to(self.dtype)
        found = torch.empty(len(keys), *self.row_shape, dtype=self.dtype)
        is_missing = torch.ones(len(keys), dtype=torch.bool)
        for part, mine in zip(self.parts, self._shares(keys), strict=True):
            positions = part.find(part.division.local(keys[mine]))
            is_there = positions >= 0
            here = mine[is_there]
            put(found, here, part.take(positions[is_there]).to(self.dtype))
            is_missing[here] = False
        left = is_missing.nonzero().squeeze(1)
        if len(left):
            put(found, left, self._missing(keys[left], default))
        return found

    def _shares(self, keys: torch.Tensor) -> list[torch.Tensor]:
        """Return which keys each part may have, as positions among them."""
        if len(self.parts) == 1:
            return [torch.arange(len(keys))]
        if self.is_dynamic:
            part = part_of_keys(keys, len(self.parts))
            return [(part == number).nonzero().squeeze(1) for number in range(len(self.parts))]
        return [part.division.has(keys).nonzero().squeeze(1) for part in self.parts]

    def _missing(self, keys: torch.Tensor, default: torch.Tensor | float | None) -> torch.Tensor:
        if default is None:
            return round_to_nearest(self._initial.rows(keys), self._stored).to(self.dtype)
        return self.default(default).expand(len(keys), *self.row_shape).contiguous()

    def default(self, value: torch.Tensor | float) -> torch.Tensor:
        """Return what rows that are missing get: an element, or a row.

        Raises:
            InvalidArgumentError: It is neither.
        """
        value = torch.as_tensor(value, dtype=self.dtype)
        if value.shape not in {(), torch.Size(self.row_shape)}:
            raise InvalidArgumentError(
                f"default has shape {tuple(value.shape)}, and rows of {self.name!r} have "
                f"{self.row_shape}; pass a number or one such row",
                variable=self.name,
            )
        return value

    def _require_rows(self, rows: torch.Tensor) -> None:
        count = self.shape[0]
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= count):
            wrong = int(rows[(rows < 0) | (rows >= count)][0])
            raise RowIndexError(
                f"{self.name!r} has no row {wrong}, but rows 0 to {count - 1}", variable=self.name
            )

    def takes(self, whole: WholeTable) -> bool:
        """Return whether it is the same table, divided in the same way."""
        mine = [(part.name, part.division) for part in self.parts]
        theirs = [(part.table.name, PartRows.from_spec(part.table.spec)) for part in whole.parts]
        return (self.spec, mine) == (whole.spec, theirs)
