"""Tables in a checkpoint: the stored rows of all servers, by their keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from stratagem_proto.checkpoint.companions import COUNTS, KEYS, TOUCHED
from stratagem_proto.checkpoint.entries import TensorEntry
from stratagem_proto.checkpoint.folder import Checkpoint
from stratagem_proto.checkpoint.whole import RUN_BYTES, Piece, Whole
from stratagem_proto.division import PartRows, are_all
from stratagem_proto.errors import DataLossError, InvalidArgumentError
from stratagem_proto.programs.initial_values import InitialValues
from stratagem_proto.programs.narrow_rows import nearest, stored_dtype
from stratagem_proto.v1.checkpoint_pb2 import TableHistory
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import allocate, as_bytes, nbytes_of

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
        return PartRows.of(self.table.spec)

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
        shape = tuple(self.entry.tensor.shape[1:])
        row_bytes = self.entry.nbytes // max(1, self.count)
        at_once = max(1, RUN_BYTES // max(1, row_bytes))
        for start in range(0, self.count, at_once):
            stop = min(start + at_once, self.count)
            ends = torch.tensor([start, stop])
            low, high = torch.searchsorted(positions, ends).tolist()
            if low == high:
                continue
            dtype = self.entry.tensor.dtype
            run = allocate(TensorSpec(dtype=dtype, shape=(stop - start, *shape)))
            if run.numel():
                checkpoint.read(self.entry, start * row_bytes, as_bytes(run))
            yield positions[low:high], run[positions[low:high] - start]


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
                f"the {MOST_DENSE_BYTES} that are read whole. `stratagem checkpoint "
                "export --stored-rows` writes the rows that are stored, and their keys",
                variable=self.name,
            )
        return super().read(checkpoint)

    def read_part(self, checkpoint: Checkpoint, rows: PartRows) -> torch.Tensor:
        """Return some rows; those that were never written have their initial values."""
        self._require_fixed()
        self._require_rows(rows)
        value = InitialValues(self.spec).of_range(rows.numbers)
        value.copy_(nearest(value, stored_dtype(self.spec)))
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
    _require_alike(name, parts)
    spec = VariableSpec()
    spec.CopyFrom(first.entry.spec)
    spec.ClearField("partition")
    spec.name = name
    if first.table.spec.HasField("partition"):
        spec.tensor.shape[0] = first.table.spec.partition.full_shape[0]
    if has_all and not slot_of:
        _require_all(name, spec.tensor.shape[0], parts)
    pieces = [Piece(part.entry, part.rows) for part in parts]
    return WholeTable(name, spec.tensor, slot_of, pieces, bool(slot_of), parts, spec)


def _require_alike(name: str, parts: Sequence[TablePart]) -> None:
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


def _require_all(name: str, rows: int, parts: Sequence[TablePart]) -> None:
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
