"""The whole variables of a checkpoint, put together from the servers' parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from stratagem_proto.checkpoint.companions import (
    COUNTS,
    KEYS,
    SEEN,
    SIGHTS,
    TOUCHED,
    is_companion,
)
from stratagem_proto.checkpoint.entries import TensorEntry
from stratagem_proto.checkpoint.index import Index
from stratagem_proto.checkpoint.tables import TablePart, table_of
from stratagem_proto.checkpoint.whole import Piece, Whole, whole_name
from stratagem_proto.division import PartRows, are_all
from stratagem_proto.errors import DataLossError, UnimplementedError
from stratagem_proto.programs.slot_names import SlotName
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import VariableSpec


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
        Piece(shard, PartRows.of(spec)) for spec, shard in partitions if _is_split_by_rows(spec)
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
