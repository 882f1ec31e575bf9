"""Dividing the tables of a checkpoint for another number of servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from stratagem_proto.checkpoint.folder import Checkpoint
from stratagem_proto.checkpoint.parts import Content
from stratagem_proto.checkpoint.wholes import Whole, WholeTable
from stratagem_proto.division import PartRows
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_psserver.variables.restoring import read_table
from stratagem_psserver.variables.snapshots import Snapshot
from stratagem_psserver.variables.store import VariableStore


def divided(table: WholeTable, servers: int) -> list[VariableSpec]:
    """Return the descriptions of a table's new parts, in the order of the servers.

    A dynamic table has one on each server, as has one that had several parts. Any other one has a
    single part.
    """
    was_split = table.parts[0].table.spec.HasField("partition")
    count = servers if table.is_dynamic or was_split else 1
    return [_part(table, number, count) for number in range(count)]


def _part(table: WholeTable, number: int, count: int) -> VariableSpec:
    spec = VariableSpec()
    spec.CopyFrom(table.spec)
    if count > 1:
        was = table.parts[0].table.spec.partition
        rows = PartRows.of_shard(table.shape[0], number, count, was.HasField("interleaved"))
        spec.name = f"{table.name}/part_{number}"
        spec.partition.CopyFrom(rows.partition(table.shape))
        spec.tensor.shape[0] = rows.count
    if table.is_dynamic:
        keys, before = spec.table.dynamic, len(table.parts)
        keys.part, keys.parts = number, count
        # What there was room for on all servers together, there is.
        keys.max_rows = -(-keys.max_rows * before // count)
        keys.max_bytes = -(-keys.max_bytes * before // count)
    return spec


def stored_part(
    checkpoint: Checkpoint, spec: VariableSpec, table: WholeTable, slots: Sequence[Whole]
) -> tuple[list[Content], Iterator[torch.Tensor]]:
    """Return the tensors of a new part of a table, which are in memory.

    Args:
        checkpoint: Where the table is.
        spec: The part.
        table: The table.
        slots: The states of its rows.
    """
    store = VariableStore()
    for arena in read_table(checkpoint, spec, table, slots).arenas:
        store.put_table(arena)
    for variable, whole in zip(store.variables(), (table, *slots), strict=True):
        variable.version = max(piece.entry.version for piece in whole.pieces)
    snapshot = Snapshot(store)
    return snapshot.contents, snapshot.taken()
