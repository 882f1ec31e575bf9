"""Whole variables, whether a checkpoint has them in one piece or in shards."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from stratagem_proto.checkpoint.folder import Checkpoint
from stratagem_proto.checkpoint.index import Index, TensorEntry
from stratagem_proto.errors import (
    DataLossError,
    OutOfRangeError,
    UnimplementedError,
)
from stratagem_proto.optimizers import OPTIMIZERS
from stratagem_proto.tensors import allocate, as_bytes, decode_dtype
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import VariableSpec

_SHARD = re.compile(r"/part_\d+(?=/|$)")
_NUMBER = re.compile(r"_\d+$")


def whole_name(spec: VariableSpec, owner: VariableSpec | None = None) -> str:
    """The name of the variable that this one is, or is a shard of.

    Args:
        spec: A variable.
        owner: Of a slot variable, the variable that it belongs to.
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
        entry: The tensor that has them.
        row: Which row of the whole is its first.
    """

    entry: TensorEntry
    row: int


@dataclass(frozen=True)
class Whole:
    """A variable as programs think of it.

    Attributes:
        name: Its name, without the number of a shard.
        tensor: Its dtype and its shape.
        slot_of: Of an optimizer's state, the name of the whole variable; else "".
        pieces: Where its rows are, from first to last.
        is_split: Whether its rows are split as its variable's are, if it is state.
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

    def read(self, checkpoint: Checkpoint) -> torch.Tensor:
        """The whole value.

        Raises:
            DataLossError: Bytes of it are missing or damaged.
        """
        return self.read_rows(checkpoint, 0, self.shape[0] if self.shape else 1)

    def read_rows(self, checkpoint: Checkpoint, start: int, stop: int) -> torch.Tensor:
        """The value of some rows; no other files are read than those that have them.

        Raises:
            OutOfRangeError: There are no such rows.
            DataLossError: Bytes of them are missing or damaged.
        """
        count = self.shape[0] if self.shape else 1
        if not 0 <= start <= stop <= count:
            raise OutOfRangeError(
                f"{self.name!r} has {count} rows in the checkpoint; rows {start} to "
                f"{stop} are no part of it",
                variable=self.name,
            )
        shape = (stop - start, *self.shape[1:]) if self.shape else ()
        value = allocate(TensorSpec(dtype=self.tensor.dtype, shape=shape))
        if value.numel():
            self._fill(
                checkpoint, start, as_bytes(value), value.nbytes // (stop - start)
            )
        return value

    def _fill(
        self, checkpoint: Checkpoint, start: int, target: memoryview, row_bytes: int
    ) -> None:
        stop = start + len(target) // row_bytes
        for piece in self.pieces:
            rows = piece.entry.nbytes // row_bytes
            low, high = max(start, piece.row), min(stop, piece.row + rows)
            if low < high:
                part = target[(low - start) * row_bytes : (high - start) * row_bytes]
                checkpoint.read(piece.entry, (low - piece.row) * row_bytes, part)


def wholes_of(index: Index) -> dict[str, Whole]:
    """The variables of a checkpoint and their optimizers' state, by name.

    Raises:
        DataLossError: Shards of a variable are missing.
        UnimplementedError: A variable is not split by rows.
    """
    owners = _owners(index)
    shards: dict[str, list[TensorEntry]] = defaultdict(list)
    for entry in index.tensors.values():
        shards[whole_name(entry.spec, owners.get(entry.name))].append(entry)
    return {name: _whole(name, group, owners) for name, group in shards.items()}


def _owners(index: Index) -> dict[str, VariableSpec]:
    """The variables that slot variables belong to, by the slot's name."""
    return {
        name: index.tensors[owner].spec
        for name, entry in index.tensors.items()
        if (owner := entry.spec.slot_of or _owner_by_name(name)) in index.tensors
    }


def _owner_by_name(name: str) -> str:
    """The variable that state belongs to in a file that says nothing but names."""
    variable, optimizer, _ = ("", "", *name.rsplit("/", 2))[-3:]
    return variable if _NUMBER.sub("", optimizer) in OPTIMIZERS else ""


def _whole(
    name: str, shards: Sequence[TensorEntry], owners: Mapping[str, VariableSpec]
) -> Whole:
    first = shards[0].spec
    owner = owners.get(first.name)
    slot_of = whole_name(owner) if owner else ""
    is_split = owner is not None and owner.tensor.shape == first.tensor.shape
    if owner is not None and not is_split:
        # Such as the number of steps, of which each shard has its own.
        return Whole(name, first.tensor, slot_of, [Piece(shards[0], 0)])
    partitions = [(owners.get(shard.name, shard.spec), shard) for shard in shards]
    if not partitions[0][0].HasField("partition"):
        return Whole(name, first.tensor, slot_of, [Piece(shards[0], 0)], is_split)
    pieces = [
        Piece(shard, spec.partition.offset[0])
        for spec, shard in partitions
        if _is_split_by_rows(spec)
    ]
    # A shard may have no rows.
    pieces.sort(key=lambda piece: (piece.row, piece.entry.nbytes))
    tensor = TensorSpec(
        dtype=first.tensor.dtype, shape=partitions[0][0].partition.full_shape
    )
    _require_all_rows(name, tensor, pieces)
    return Whole(name, tensor, slot_of, pieces, is_split)


def _is_split_by_rows(spec: VariableSpec) -> bool:
    partition = spec.partition
    if any(partition.offset[1:]) or partition.full_shape[1:] != spec.tensor.shape[1:]:
        raise UnimplementedError(
            f"{spec.name!r} is a part of columns; checkpoints join rows only",
            variable=spec.name,
        )
    return True


def _require_all_rows(name: str, tensor: TensorSpec, pieces: Sequence[Piece]) -> None:
    expected = list(_ends(pieces))
    if [0, *expected] != [*(piece.row for piece in pieces), tensor.shape[0]]:
        raise DataLossError(
            f"the checkpoint does not have all rows of {name!r}, but those from "
            f"{', '.join(str(piece.row) for piece in pieces)} of {tensor.shape[0]} on; "
            "restore an earlier checkpoint",
            variable=name,
        )


def _ends(pieces: Sequence[Piece]) -> Iterator[int]:
    for piece in pieces:
        yield piece.row + piece.entry.spec.tensor.shape[0]
