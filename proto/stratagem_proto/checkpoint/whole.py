"""Whole variables of a checkpoint, which may consist of several pieces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stratagem_proto.checkpoint.entries import TensorEntry
from stratagem_proto.checkpoint.folder import Checkpoint
from stratagem_proto.errors import RowIndexError
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import allocate, as_bytes, decode_dtype

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
        row: The number of the first row within the whole variable.
    """

    entry: TensorEntry
    row: int

    @property
    def stop(self) -> int:
        """The number of the row behind the last one."""
        shape = self.entry.tensor.shape
        return self.row + (shape[0] if shape else 1)


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
        self._require_rows(start, stop)
        for piece in self.pieces:
            if piece.row < stop and start < piece.stop:
                checkpoint.require_there(piece.entry)
        shape = (stop - start, *self.shape[1:]) if self.shape else ()
        value = allocate(TensorSpec(dtype=self.tensor.dtype, shape=shape))
        if value.numel():
            self._fill(checkpoint, start, as_bytes(value), value.nbytes // (stop - start))
        return value

    def _require_rows(self, start: int, stop: int) -> None:
        count = self.shape[0] if self.shape else 1
        if not 0 <= start <= stop <= count:
            raise RowIndexError(
                f"{self.name!r} has {count} rows in the checkpoint; rows {start} to "
                f"{stop} are no part of it",
                variable=self.name,
            )

    def _fill(self, checkpoint: Checkpoint, start: int, target: memoryview, row_bytes: int) -> None:
        stop = start + len(target) // row_bytes
        for piece in self.pieces:
            low, high = max(start, piece.row), min(stop, piece.stop)
            if low < high:
                part = target[(low - start) * row_bytes : (high - start) * row_bytes]
                checkpoint.read(piece.entry, (low - piece.row) * row_bytes, part)
