"""What a part of a version changes in tensors: all of their rows, or some."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from stratagem_proto.errors import DataLossError
from stratagem_proto.rows import put, set_rows
from stratagem_proto.v1.tensor_pb2 import DATA_TYPE_UINT8, TensorSpec
from stratagem_proto.wire.tensors import allocate, as_bytes
from stratagem_reader.source import Chain, Extent, Version, VersionPart, read_tensors
from stratagem_storage.checkpoint.deltas import Delta, PatchedTensor
from stratagem_storage.checkpoint.entries import (
    KEYS,
    TensorEntry,
    are_alike,
    row_count,
    some_rows,
)
from stratagem_storage.checkpoint.wholes import TablePart


@dataclass(frozen=True)
class Change:
    """The rows of a tensor that a version has, and the one before had not.

    Attributes:
        entry: The tensor as it is in the version.
        values: The rows, of the tensor's shape if they are all.
        numbers: Which rows they are, int64, ascending; None for all.
        deltas: What makes all rows of those of the version before, one after the other; empty if
            that is not known.
    """

    entry: TensorEntry
    values: torch.Tensor
    numbers: torch.Tensor | None = None
    deltas: tuple[Delta, ...] = ()

    @property
    def count(self) -> int:
        """How many rows the tensor has then."""
        return row_count(self.entry.tensor)

    @property
    def entry_of_whole(self) -> TensorEntry:
        """The tensor as it is described where all of it is."""
        return replace(self.entry, changed=None, delta=None)

    def require_fit(self, before: TensorSpec | None, where: str) -> None:
        """Check that it makes a whole tensor of what there was before.

        Raises:
            DataLossError: It does not.
        """
        if self.numbers is None:
            return
        alike = before is not None and are_alike(before, self.entry.tensor)
        known = row_count(before) if before is not None else 0
        each, count = self.numbers, self.count
        within = not len(each) or (int(each[0]) >= 0 and int(each[-1]) < count)
        beyond = len(each) - int(torch.searchsorted(each, known))
        if not (alike and within and (each.diff() > 0).all() and beyond == max(0, count - known)):
            raise DataLossError(
                f"{where!r} does not have the rows of {self.entry.name!r} that are not in the "
                "version before",
                variable=self.entry.name,
            )

    def then(self, later: Change) -> Change:
        """Return the change that both make, one after the other."""
        if later.numbers is None:
            is_known = self.deltas or (self.numbers is not None and not len(self.numbers))
            deltas = (*self.deltas, *later.deltas) if is_known and later.deltas else ()
            return replace(later, deltas=deltas)
        if self.deltas and not len(later.numbers):
            return replace(self, entry=later.entry)
        if self.numbers is None:
            shape = tuple(later.entry.tensor.shape)
            values = self.values
            if shape and shape[0] != len(values):
                values = torch.empty(shape, dtype=self.values.dtype)
                kept = min(shape[0], len(self.values))
                values[:kept] = self.values[:kept]
            write_rows(values, later.numbers, later.values)
            return Change(later.entry, values)
        numbers, order = torch.cat([self.numbers, later.numbers]).sort(stable=True)
        # Of a row that both have, the later one's stands behind; rows may have gone since.
        is_last = torch.ones(len(numbers), dtype=torch.bool)
        is_last[:-1] = numbers[1:] != numbers[:-1]
        is_last &= numbers < later.count
        values = torch.cat([self.values, later.values])[order[is_last]]
        return replace(later, values=values, numbers=numbers[is_last])


@dataclass(frozen=True)
class KeyedChange:
    """What a version changes in one part of a table, told by keys in place of positions.

    Attributes:
        part: The part.
        keys: The keys that are written.
        rows: Their rows.
        moved_from: The keys that had the bytes of the last of these rows, which are not there yet.
        added: Keys that were not in the part.
        gone: Keys that are in it no more.
        before: The key at each position, before.
        positions: The key at each position, afterwards.
        changed: Which positions have another key.
    """

    part: TablePart
    keys: torch.Tensor
    rows: torch.Tensor
    moved_from: torch.Tensor
    added: torch.Tensor
    gone: torch.Tensor
    before: torch.Tensor
    positions: torch.Tensor
    changed: torch.Tensor

    @classmethod
    def of(
        cls, part: TablePart, before: torch.Tensor, changes: Mapping[str, Change]
    ) -> KeyedChange:
        """Return what the change of a part is by its keys.

        Raises:
            DataLossError: It has a key twice, or one that is not in the vocabulary.
        """
        rows, keys = changes[part.entry.name], changes[part.entry.name + KEYS]
        dynamic = part.table.spec.table.HasField("dynamic")
        local, vocabulary = keys.values, part.table.spec.tensor.shape[0]
        if not dynamic and not ((local >= 0) & (local < vocabulary)).all():
            raise _unsound(part, "keys that are not in its vocabulary")
        if len(local.unique()) < len(local):
            raise _unsound(part, "a key twice")
        count, present = rows.count, part.rows.whole(local)
        numbers = torch.arange(count) if keys.numbers is None else keys.numbers
        positions = torch.empty(count, dtype=torch.int64)
        kept = min(count, len(before))
        positions[:kept] = before[:kept]
        put(positions, numbers, present)
        left = torch.cat([before[numbers[numbers < len(before)]], before[count:]])
        # An incremental checkpoint compares bytes: those of a row may be what stood there before,
        # of another key.
        written = torch.arange(count) if rows.numbers is None else rows.numbers
        unwritten = numbers[~torch.isin(numbers, written)]
        if len(unwritten) and int(unwritten[-1]) >= len(before):
            raise _unsound(part, "keys without rows")
        values = rows.values
        if len(unwritten):
            values = torch.cat([values, values.new_empty(len(unwritten), *values.shape[1:])])
        return cls(
            part,
            positions[torch.cat([written, unwritten])],
            values,
            before[unwritten],
            present[~torch.isin(present, left)],
            left[~torch.isin(left, present)],
            before,
            positions,
            numbers,
        )

    @property
    def row_nbytes(self) -> int:
        return self.rows.dtype.itemsize * self.rows.shape[1:].numel()

    def unsound(self, what: str) -> DataLossError:
        """Return the error for a change that cannot be."""
        return _unsound(self.part, what)


def _unsound(part: TablePart, what: str) -> DataLossError:
    name = part.entry.name
    return DataLossError(f"the next version has {what} in {name!r}", variable=name)


def write_rows(into: torch.Tensor, numbers: torch.Tensor, values: torch.Tensor) -> None:
    """Write rows of a tensor; one without dimensions is one row."""
    if not into.dim():
        if len(numbers):
            into.copy_(values.reshape(()))
    elif into.is_contiguous():
        put(into, numbers, values)
    else:
        set_rows(into, numbers, values)


def changes_of(
    chain: Chain, before: Mapping[str, TensorEntry], values: Mapping[str, torch.Tensor]
) -> dict[str, Change]:
    """Read what leads to a version, and return what they change together, by tensor.

    All tensors that the part has in the last version are there, unchanged ones without rows.

    Args:
        chain: What leads to the version.
        before: The tensors that there are, by name.
        values: Their values.

    Raises:
        DataLossError: Something is damaged, or does not continue what there is before it.
        FailedPreconditionError: There are deltas, and the package is missing that reads them.
    """
    made: dict[str, Change] = {}
    present = {name: entry.tensor for name, entry in before.items()}
    for part in chain:
        read = dict(_read(part))
        for name, change in read.items():
            change.require_fit(present.get(name), part.name)
            if change.entry.delta is not None:
                is_alike = present.get(name) == change.entry.tensor
                base = _value_before(made.get(name), values.get(name)) if is_alike else None
                read[name] = change = _patched(change, base, part.name)
            if name in made:
                read[name] = made[name].then(change)
        made = read
        present |= {name: change.entry.tensor for name, change in made.items()}
    return made


def all_changes(
    version: Version,
    chains: Sequence[Chain],
    before: Mapping[str, TensorEntry],
    values: Mapping[str, torch.Tensor],
) -> tuple[dict[str, Change], dict[str, str]]:
    """Read what leads all parts to a version; the arguments are as of `changes_of`.

    Returns:
        What they change, and where that is from, for messages; by tensor.

    Raises:
        DataLossError: As by `changes_of`; or parts have the same tensor, or no keys of a table.
    """
    changes, files = dict[str, Change](), dict[str, str]()
    for chain in chains:
        for name, change in changes_of(chain, before, values).items():
            if name in changes:
                raise DataLossError(
                    f"two parts of version {version.number} have {name!r}", variable=name
                )
            changes[name], files[name] = change, chain[-1].name
    for name, change in changes.items():
        if change.entry.rows is not None:
            keys = changes.get(name + KEYS)
            if keys is None or keys.count != change.count:
                raise DataLossError(
                    f"{files[name]!r} does not have the keys of {name!r}", variable=name
                )
    return changes, files


def _value_before(made: Change | None, present: torch.Tensor | None) -> torch.Tensor | None:
    """Return a value as what has been read so far leaves it; None if there is none."""
    if made is None or made.numbers is None:
        return present if made is None else made.values
    if present is not None and len(made.numbers):
        present = present.clone()
        write_rows(present, made.numbers, made.values)
    return present


def _patched(change: Change, base: torch.Tensor | None, where: str) -> Change:
    """Return a change whose values are a delta with those that this makes of the base."""
    entry = change.entry
    assert entry.delta is not None
    if base is None:
        raise DataLossError(
            f"{where!r} has a delta of {entry.name!r}, which is not so in the version before",
            variable=entry.name,
        )
    delta, data = Delta(change.values, entry.delta.base, entry.delta.made), as_bytes(base)

    def read_base(begin: int, target: memoryview) -> None:
        target[:] = data[begin : begin + len(target)]

    patched = PatchedTensor(entry.tensor, entry.delta, delta.read, read_base, where)
    values = allocate(entry.tensor)
    patched.read(0, as_bytes(values))
    return Change(entry, values, deltas=(delta,))


def _read(part: VersionPart) -> Iterator[tuple[str, Change]]:
    """Yield the names and changes of a part, all of whose bytes were checked.

    The values of one with a delta are the bytes of that.
    """
    found: list[Change] = []
    extents: dict[str, list[Extent]] = defaultdict(list)
    for entry in read_tensors(part).values():
        numbers, tensor = None, entry.tensor
        if entry.changed is not None:
            numbers = torch.empty(entry.changed.count, dtype=torch.int64)
            tensor = some_rows(tensor, entry.changed.count)
            extents[entry.file].append((entry.changed.begin, as_bytes(numbers)))
        if entry.delta is not None:
            tensor = TensorSpec(dtype=DATA_TYPE_UINT8, shape=[entry.delta.nbytes])
        values = allocate(tensor)
        extents[entry.file].append((entry.begin, as_bytes(values)))
        found.append(Change(entry, values, numbers))
    for some in extents.values():
        some[:] = sorted((one for one in some if len(one[1])), key=lambda one: one[0])
    part.read(extents)
    for change in found:
        yield change.entry.name, change
