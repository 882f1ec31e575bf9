"""The whole variables of a checkpoint, put together from the servers' parts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from stratagem_proto.division import PartRows, are_all
from stratagem_proto.errors import (
    DataLossError,
    InvalidArgumentError,
    RowIndexError,
    UnimplementedError,
)
from stratagem_proto.programs.optimizers import SlotName
from stratagem_proto.programs.random_rows import InitialValues, round_to_nearest, stored_dtype
from stratagem_proto.v1.checkpoint_pb2 import TableHistory
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import allocate, as_bytes, decode_dtype, nbytes_of
from stratagem_storage.checkpoint.entries import (
    COUNTS,
    KEYS,
    SEEN,
    SIGHTS,
    TOUCHED,
    TensorEntry,
    is_companion,
    row_nbytes,
)
from stratagem_storage.checkpoint.folder import Checkpoint
from stratagem_storage.checkpoint.index import Index

RUN_BYTES = 4 << 20
"""So many bytes are read at once of rows that do not become those of one tensor as they are."""

_SHARD = re.compile(r"/part_\d+(?=/|$)")


def whole_name(spec: VariableSpec, owner: VariableSpec | None = None) -> str:
    """Return the name of the whole variable that a variable is or is a shard of.

    Args:
        spec: The variable.
        owner: The owner, if it is a slot variable.
    """
    shard = spec if owner is None else owner
    if not shard.HasField("partition"):
        return spec.name
    whole = _SHARD.sub("", shard.name)
    return whole + spec.name.removeprefix(shard.name)


@dataclass(frozen=True)
class Piece:
    """Rows of a whole variable.

    Attributes:
        entry: The place of the rows.
        rows: Which rows of the whole variable they are.
    """

    entry: TensorEntry
    rows: PartRows


@dataclass(frozen=True)
class Whole:
    """A whole variable.

    Attributes:
        name: Its name, without the number of a shard.
        tensor: Its dtype and its shape.
        slot_of: The name of its owner, if it is a slot variable; otherwise "".
        pieces: Its rows, from first to last.
        is_split: Whether it is a slot variable whose rows are divided like those of its owner.
    """

    name: str
    tensor: TensorSpec
    slot_of: str
    pieces: Sequence[Piece]
    is_split: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        return decode_dtype(self.tensor.dtype)

    def is_state_of(self, other: Whole) -> bool:
        """Return whether it is a slot of another variable, with rows for each of its own."""
        return self.slot_of == other.name and self.is_split

    def read(self, checkpoint: Checkpoint) -> torch.Tensor:
        """Return the whole value.

        Raises:
            DataLossError: Bytes of it are missing or damaged.
        """
        return self.read_rows(checkpoint, 0, self.shape[0] if self.shape else 1)

    def read_rows(self, checkpoint: Checkpoint, start: int, stop: int) -> torch.Tensor:
        """Return some rows, reading only the files that contain them.

        Raises:
            RowIndexError: There are no such rows.
            DataLossError: Bytes of them are missing or damaged.
        """
        return self.read_part(checkpoint, PartRows(start, stop - start))

    def read_part(self, checkpoint: Checkpoint, rows: PartRows) -> torch.Tensor:
        """As `read_rows`, for rows that may be some apart."""
        self._require_rows(rows)
        shared = [(piece, *piece.rows.shared(rows)) for piece in self.pieces]
        for piece, _, wanted in shared:
            if wanted:
                checkpoint.require_there(piece.entry)
        shape = (rows.count, *self.shape[1:]) if self.shape else ()
        value = allocate(TensorSpec(dtype=self.tensor.dtype, shape=shape))
        if value.numel():
            target = torch.frombuffer(as_bytes(value), dtype=torch.uint8).view(rows.count, -1)
            for piece, held, wanted in shared:
                _fill(checkpoint, piece.entry, held, target, wanted)
        return value

    def _require_rows(self, rows: PartRows) -> None:
        count = self.shape[0] if self.shape else 1
        start, stop = rows.numbers.start, rows.numbers.stop
        if rows.count and rows.step > 1:
            stop = rows.numbers[-1] + 1
        if not 0 <= start <= stop <= count:
            raise RowIndexError(
                f"{self.name!r} has {count} rows in the checkpoint; rows {start} to "
                f"{stop} are no part of it",
                variable=self.name,
            )


def _fill(
    checkpoint: Checkpoint, entry: TensorEntry, held: range, target: torch.Tensor, wanted: range
) -> None:
    """Read rows of a tensor of a file into rows of another one, of which `target` has the bytes."""
    row_bytes = target.shape[1]
    if held.step == wanted.step == 1:
        if held:
            rows = target[wanted.start : wanted.stop]
            checkpoint.read(entry, held.start * row_bytes, as_bytes(rows))
        return
    # What lies between the rows is read with them.
    at_once = max(1, RUN_BYTES // (held.step * row_bytes))
    for low in range(0, len(held), at_once):
        some, into = held[low : low + at_once], wanted[low : low + at_once]
        run = target.new_empty(some[-1] + 1 - some[0], row_bytes)
        checkpoint.read(entry, some[0] * row_bytes, as_bytes(run))
        target[into.start : into.stop : into.step] = run[:: some.step]


MOST_DENSE_BYTES = 4 << 30
"""A larger table is not read as one dense tensor that includes the rows nobody has written."""


@dataclass(frozen=True)
class TablePart:
    """One server's part of a table, or of a slot of it.

    Attributes:
        entry: The place of the rows.
        table: The place of the rows of the table itself.
        companions: The places of the companion tensors, by the endings of their names.
    """

    entry: TensorEntry
    table: TensorEntry
    companions: Mapping[str, TensorEntry]

    @property
    def rows(self) -> PartRows:
        """Which rows of the whole table it may have."""
        return PartRows.from_spec(self.table.spec)

    @property
    def number(self) -> int:
        """The number of this part of a dynamic table."""
        return self.table.spec.table.dynamic.part

    @property
    def count(self) -> int:
        """The number of stored rows."""
        assert self.entry.rows is not None
        return self.entry.rows.count

    @property
    def history(self) -> TableHistory:
        """The clock and the counts of the table."""
        assert self.table.rows is not None
        return self.table.rows.history

    def keys(self, checkpoint: Checkpoint) -> torch.Tensor:
        """Return the keys of its rows; row numbers of a table that is not dynamic."""
        return self.rows.whole(checkpoint.tensor(self.companions[KEYS]))

    def stored(
        self, checkpoint: Checkpoint, start: int, stop: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and the rows at some positions; keys as `keys` does."""
        found = []
        for entry in (self.companions[KEYS], self.entry):
            shape = (stop - start, *entry.tensor.shape[1:])
            run = allocate(TensorSpec(dtype=entry.tensor.dtype, shape=shape))
            if run.numel():
                checkpoint.read(entry, start * row_nbytes(entry.tensor), as_bytes(run))
            found.append(run)
        return self.rows.whole(found[0]), found[1]

    def vector(self, checkpoint: Checkpoint, what: str) -> torch.Tensor:
        """Return a companion tensor; zeros if the table does not record touches, or counts."""
        if what in self.companions:
            return checkpoint.tensor(self.companions[what])
        return torch.zeros(self.count if what in (TOUCHED, COUNTS) else 0, dtype=torch.int64)

    def runs(
        self, checkpoint: Checkpoint, positions: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield positions and their rows, some at a time.

        Args:
            checkpoint: The checkpoint.
            positions: The positions of stored rows, ascending.
        """
        row_bytes = self.entry.nbytes // max(1, self.count)
        at_once = max(1, RUN_BYTES // max(1, row_bytes))
        for start in range(0, self.count, at_once):
            ends = torch.tensor([start, start + at_once])
            low, high = torch.searchsorted(positions, ends).tolist()
            if low < high:
                yield positions[low:high], self.rows_at(checkpoint, positions[low:high])

    def rows_at(self, checkpoint: Checkpoint, positions: torch.Tensor) -> torch.Tensor:
        """Return the rows at some positions; all between the first and the last are read.

        Args:
            checkpoint: The checkpoint.
            positions: The positions of stored rows, ascending; at least one.
        """
        start, last = int(positions[0]), int(positions[-1])
        shape = (last + 1 - start, *self.entry.tensor.shape[1:])
        run = allocate(TensorSpec(dtype=self.entry.tensor.dtype, shape=shape))
        if run.numel():
            row_bytes = self.entry.nbytes // self.count
            checkpoint.read(self.entry, start * row_bytes, as_bytes(run))
        return run[positions - start]


@dataclass(frozen=True)
class WholeTable(Whole):
    """A whole table, or a whole slot of one.

    Attributes:
        parts: The parts of all servers.
        spec: The description of a table with all rows on one server.
    """

    parts: Sequence[TablePart] = ()
    spec: VariableSpec = field(default_factory=VariableSpec)

    @property
    def is_dynamic(self) -> bool:
        """Whether it is a dynamic table, whose keys may be any numbers."""
        return self.parts[0].table.spec.table.HasField("dynamic")

    @property
    def count(self) -> int:
        """The number of stored rows."""
        return sum(part.count for part in self.parts)

    def keys(self, checkpoint: Checkpoint) -> Iterator[torch.Tensor]:
        """Yield the keys of the stored rows, part by part."""
        for part in self.parts:
            yield part.keys(checkpoint)

    def runs(self, checkpoint: Checkpoint) -> Iterator[torch.Tensor]:
        """Yield the stored rows in the same order, some at a time."""
        for part in self.parts:
            for _, rows in part.runs(checkpoint, torch.arange(part.count)):
                yield rows

    def stored(self, checkpoint: Checkpoint) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys of the stored rows, ascending, and the rows."""
        keys = torch.cat(list(self.keys(checkpoint)))
        rows = torch.cat([checkpoint.tensor(part.entry) for part in self.parts])
        order = keys.argsort()
        return keys[order], rows[order]

    def read(self, checkpoint: Checkpoint) -> torch.Tensor:
        """Return the whole value; rows that were never written have their initial values.

        Raises:
            InvalidArgumentError: It is too large, or has no fixed number of rows.
            DataLossError: Bytes of it are missing or damaged.
        """
        nbytes = nbytes_of(self.tensor)
        if nbytes > MOST_DENSE_BYTES:
            raise InvalidArgumentError(
                f"table {self.name!r} has {nbytes} bytes with all its rows, more than "
                f"the {MOST_DENSE_BYTES} that are read whole. strategy.export(module, PATH) writes "
                "all of them from a cluster, and `stratagem checkpoint export --stored-rows` the "
                "rows that are stored, and their keys",
                variable=self.name,
            )
        return super().read(checkpoint)

    def read_part(self, checkpoint: Checkpoint, rows: PartRows) -> torch.Tensor:
        """Return some rows; those that were never written have their initial values."""
        self._require_fixed()
        self._require_rows(rows)
        value = InitialValues(self.spec).of_range(rows.numbers)
        value.copy_(round_to_nearest(value, stored_dtype(self.spec)))
        for part in self.parts:
            keys = part.keys(checkpoint)
            wanted = rows.has(keys).nonzero().squeeze(1)
            for some, found in part.runs(checkpoint, wanted):
                value[rows.local(keys[some])] = found.to(value.dtype)
        return value

    def _require_fixed(self) -> None:
        if self.is_dynamic:
            raise InvalidArgumentError(
                f"dynamic table {self.name!r} has no fixed number of rows to be read "
                "whole; restore it with parameter servers, or `stratagem checkpoint "
                "export --stored-rows` writes the rows that are stored, and their keys",
                variable=self.name,
            )


def undivided(table: WholeTable) -> VariableSpec:
    """Return the description of a table or a slot of one in a single part."""
    spec = VariableSpec()
    spec.CopyFrom(table.spec)
    spec.slot_of = table.slot_of
    if spec.table.HasField("dynamic"):
        keys, parts = spec.table.dynamic, len(table.parts)
        keys.part, keys.parts = 0, 1
        keys.max_rows *= parts
        keys.max_bytes *= parts
    return spec


def table_of(
    name: str, slot_of: str, parts: Sequence[TablePart], has_all: bool = True
) -> WholeTable:
    """Put the parts of a table, or of a slot of one, together.

    Args:
        name: The name of the whole.
        slot_of: The name of the table, if it is a slot; otherwise "".
        parts: The parts.
        has_all: Whether no part of a table may be missing.

    Raises:
        DataLossError: Parts are missing.
    """
    parts = sorted(parts, key=lambda part: (part.rows.first, part.number))
    first = parts[0]
    _require_parts_alike(name, parts)
    spec = VariableSpec()
    spec.CopyFrom(first.entry.spec)
    spec.ClearField("partition")
    spec.name = name
    if first.table.spec.HasField("partition"):
        spec.tensor.shape[0] = first.table.spec.partition.full_shape[0]
    if has_all and not slot_of:
        _require_all_parts(name, spec.tensor.shape[0], parts)
    pieces = [Piece(part.entry, part.rows) for part in parts]
    return WholeTable(name, spec.tensor, slot_of, pieces, bool(slot_of), parts, spec)


def _require_parts_alike(name: str, parts: Sequence[TablePart]) -> None:
    kinds = {
        (
            part.entry.tensor.dtype,
            tuple(part.entry.tensor.shape[1:]),
            tuple(part.table.spec.partition.full_shape),
            part.table.spec.table.HasField("dynamic"),
        )
        for part in parts
        if part.entry.rows is not None
    }
    if len(kinds) > 1 or any(part.entry.rows is None for part in parts):
        raise DataLossError(
            f"the checkpoint has parts of table {name!r} that do not belong together; restore an "
            "earlier checkpoint",
            variable=name,
        )


def _require_all_parts(name: str, rows: int, parts: Sequence[TablePart]) -> None:
    dynamic = parts[0].table.spec.table.dynamic
    numbers = [part.number for part in parts]
    whole = len(numbers) == max(1, dynamic.parts) and numbers == list(range(len(numbers)))
    if not parts[0].table.spec.table.HasField("dynamic"):
        whole = are_all([part.rows for part in parts], rows)
    if not whole:
        raise DataLossError(
            f"the checkpoint does not have all parts of table {name!r}; restore an "
            "earlier checkpoint",
            variable=name,
        )


def wholes_of(index: Index, has_all: bool = True) -> dict[str, Whole]:
    """Return the variables of a checkpoint and their optimizers' state, by name.

    Args:
        index: The table of contents.
        has_all: Whether it must have all shards of each variable, and not those of one server.

    Raises:
        DataLossError: Shards of a variable are missing.
        UnimplementedError: A variable is not split by rows.
    """
    owners = _owners(index)
    shards: dict[str, list[TensorEntry]] = defaultdict(list)
    for name, entry in index.tensors.items():
        if not is_companion(name, index.tensors):
            shards[whole_name(entry.spec, owners.get(name))].append(entry)
    return {
        name: _table(name, group, index, has_all)
        if group[0].rows is not None
        else _whole(name, group, owners, has_all)
        for name, group in shards.items()
    }


def _table(name: str, entries: Sequence[TensorEntry], index: Index, has_all: bool) -> Whole:
    tensors = index.tensors
    parts = []
    for entry in entries:
        table = tensors.get(entry.spec.slot_of, entry)
        companions = {
            what: tensors[table.name + what]
            for what in (KEYS, TOUCHED, COUNTS, SEEN, SIGHTS)
            if table.name + what in tensors
        }
        parts.append(TablePart(entry, table, companions))
    slot_of = whole_name(parts[0].table.spec) if parts[0].entry.spec.slot_of else ""
    return table_of(name, slot_of, parts, has_all)


def _owners(index: Index) -> dict[str, VariableSpec]:
    """Return the owners of slot variables, by the slot's name."""
    return {
        name: index.tensors[owner].spec
        for name, entry in index.tensors.items()
        if (owner := entry.spec.slot_of or _owner_by_name(name)) in index.tensors
    }


def _owner_by_name(name: str) -> str:
    """Return the owner of a slot variable by its name alone; "" if the name is not a slot's."""
    slot = SlotName.parse(name)
    return slot.variable if slot else ""


def _whole(
    name: str, shards: Sequence[TensorEntry], owners: Mapping[str, VariableSpec], has_all: bool
) -> Whole:
    first = shards[0].spec
    owner = owners.get(first.name)
    slot_of = whole_name(owner) if owner else ""
    is_split = owner is not None and _is_by_rows(first.tensor, owner.tensor)
    if owner is not None and not is_split:
        # For instance the number of steps, which each shard has.
        return Whole(name, first.tensor, slot_of, [_all_rows(shards[0])])
    partitions = [(owners.get(shard.name, shard.spec), shard) for shard in shards]
    if not partitions[0][0].HasField("partition"):
        return Whole(name, first.tensor, slot_of, [_all_rows(shards[0])], is_split)
    _require_alike(name, partitions)
    pieces = [
        Piece(shard, PartRows.from_spec(spec))
        for spec, shard in partitions
        if _is_split_by_rows(spec)
    ]
    # The size decides between shards that begin at the same row, since a shard may have no rows.
    pieces.sort(key=lambda piece: (piece.rows.first, piece.entry.nbytes))
    full = partitions[0][0].partition.full_shape[: len(first.tensor.shape)]
    tensor = TensorSpec(dtype=first.tensor.dtype, shape=full)
    if has_all:
        _require_all_rows(name, tensor, pieces)
    return Whole(name, tensor, slot_of, pieces, is_split)


def _is_by_rows(tensor: TensorSpec, owner: TensorSpec) -> bool:
    """Return whether a tensor has the elements of its owner, or one for each of its rows."""
    return tensor.shape in (owner.shape, owner.shape[:1])


def _all_rows(entry: TensorEntry) -> Piece:
    return Piece(entry, PartRows(0, entry.tensor.shape[0] if entry.tensor.shape else 1))


def _require_alike(name: str, shards: Sequence[tuple[VariableSpec, TensorEntry]]) -> None:
    """Check that shards are of one whole: the memory of all is taken by what the first says."""
    kinds = {
        (tuple(spec.partition.full_shape), shard.tensor.dtype, len(shard.tensor.shape))
        for spec, shard in shards
    }
    are_by_rows = all(_is_by_rows(shard.tensor, spec.tensor) for spec, shard in shards)
    if len(kinds) > 1 or not are_by_rows:
        raise DataLossError(
            f"the checkpoint has parts of {name!r} that do not belong together; restore an "
            "earlier checkpoint",
            variable=name,
        )


def _is_split_by_rows(spec: VariableSpec) -> bool:
    partition = spec.partition
    if any(partition.offset[1:]) or partition.full_shape[1:] != spec.tensor.shape[1:]:
        raise UnimplementedError(
            f"{spec.name!r} is a part of columns; checkpoints join rows only", variable=spec.name
        )
    return True


def _require_all_rows(name: str, tensor: TensorSpec, pieces: Sequence[Piece]) -> None:
    if not are_all([piece.rows for piece in pieces], tensor.shape[0]):
        raise DataLossError(
            f"the checkpoint does not have all rows of {name!r}, but "
            f"{', '.join(str(piece.rows) for piece in pieces)} of {tensor.shape[0]}; "
            "restore an earlier checkpoint",
            variable=name,
        )
