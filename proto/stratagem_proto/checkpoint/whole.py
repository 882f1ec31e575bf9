"""Whole variables of a checkpoint, which may consist of several pieces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stratagem_proto.checkpoint.entries import TensorEntry
from stratagem_proto.checkpoint.folder import Checkpoint
from stratagem_proto.division import PartRows
from stratagem_proto.errors import RowIndexError
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import allocate, as_bytes, decode_dtype

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
