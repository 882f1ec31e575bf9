"""Tables that are made of what a checkpoint has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from stratagem_proto.checkpoint.folder import Checkpoint
from stratagem_proto.checkpoint.tables import SEEN, SIGHTS, TOUCHED, TablePart, WholeTable
from stratagem_proto.checkpoint.whole import Whole
from stratagem_proto.keys import part_of_keys
from stratagem_proto.v1.checkpoint_pb2 import TableHistory
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_SLOT, Initializer, TableSpec, VariableSpec
from stratagem_psserver.tables.arena import Arena
from stratagem_psserver.tables.table import Table

_ROWS_AT_ONCE_BYTES = 4 << 20


def read_table(
    checkpoint: Checkpoint, spec: VariableSpec, whole: Whole, slots: Sequence[Whole]
) -> Table:
    """Make a table, or a part of one, with the rows that a checkpoint has of it.

    Args:
        checkpoint: Where they are.
        spec: What it is here.
        whole: What it is there; maybe a variable that was there with all its rows.
        slots: The states of its rows there.

    Raises:
        ResourceExhaustedError: There is no memory for it.
        DataLossError: The checkpoint is damaged.
    """
    table = Table(_as_saved(spec, whole))
    arenas = [Arena(table, _slot_spec(spec, whole, slot)) for slot in slots]
    if isinstance(whole, WholeTable):
        _read_stored(checkpoint, table, arenas, (whole, *slots))
    else:
        _read_all(checkpoint, table, arenas, (whole, *slots))
    return table


def _as_saved(spec: VariableSpec, whole: Whole) -> VariableSpec:
    """Return the variable as it is here, with the initial values that it had there."""
    made = VariableSpec()
    made.CopyFrom(spec)
    if isinstance(whole, WholeTable):
        made.initializer.CopyFrom(whole.spec.initializer)
    return made


def _slot_spec(spec: VariableSpec, whole: Whole, slot: Whole) -> VariableSpec:
    # Where all rows were saved, none has its initial value.
    initializer = Initializer(constant=0.0)
    if isinstance(slot, WholeTable):
        initializer = slot.spec.initializer
    return VariableSpec(
        name=spec.name + slot.name.removeprefix(whole.name),
        tensor=TensorSpec(dtype=slot.tensor.dtype, shape=spec.tensor.shape),
        kind=VARIABLE_KIND_SLOT,
        slot_of=spec.name,
        initializer=initializer,
        table=TableSpec(),
    )


def _first_row(spec: VariableSpec) -> int:
    return spec.partition.offset[0] if spec.partition.offset else 0


def _read_all(
    checkpoint: Checkpoint, table: Table, arenas: list[Arena], sources: Sequence[Whole]
) -> None:
    spec = table.value.initial.spec
    first, count = _first_row(spec), spec.tensor.shape[0]
    keys = torch.arange(count)
    table.adopt(arenas, keys, torch.zeros_like(keys), TableHistory())
    for arena, source in zip(table.arenas, sources, strict=True):
        at_once = max(1, _ROWS_AT_ONCE_BYTES // max(1, arena.row_bytes))
        for start in range(0, count, at_once):
            stop = min(start + at_once, count)
            rows = source.read_rows(checkpoint, first + start, first + stop)
            arena.storage[start:stop] = rows


@dataclass(frozen=True)
class _Share:
    """What a part of a table gets of one that the checkpoint has.

    Attributes:
        part: The latter.
        positions: Which of its stored rows.
        keys: Their keys here.
        behind: How much less its time is than that of others.
    """

    part: TablePart
    positions: torch.Tensor
    keys: torch.Tensor
    behind: int

    def touched(self, checkpoint: Checkpoint) -> torch.Tensor:
        return self.part.vector(checkpoint, TOUCHED)[self.positions] + self.behind


def _read_stored(
    checkpoint: Checkpoint, table: Table, arenas: list[Arena], sources: Sequence[Whole]
) -> None:
    spec, whole = table.value.initial.spec, sources[0]
    assert isinstance(whole, WholeTable)
    parts = _concerned(spec, whole)
    shares = list(_shares(checkpoint, spec, parts))
    table.adopt(
        arenas,
        torch.cat([share.keys for share in shares]),
        torch.cat([share.touched(checkpoint) for share in shares]),
        _history(spec, parts),
    )
    for arena, source in zip(table.arenas, sources, strict=True):
        assert isinstance(source, WholeTable)
        _fill(checkpoint, arena, source, shares)
    _restore_admission(checkpoint, table, parts)
    table.fit()


def _concerned(spec: VariableSpec, whole: WholeTable) -> list[TablePart]:
    """The parts of a table that may have rows of the part that a spec describes."""
    parts, keys = whole.parts, spec.table.dynamic
    if whole.is_dynamic:
        same = len(parts) == max(1, keys.parts)
        return [parts[keys.part]] if same else list(parts)
    first = _first_row(spec)
    stop = first + spec.tensor.shape[0]
    return [
        part
        for part in parts
        if part.row < stop and first < part.row + part.table.spec.tensor.shape[0]
    ] or list(parts[:1])


def _shares(
    checkpoint: Checkpoint, spec: VariableSpec, parts: Sequence[TablePart]
) -> Iterator[_Share]:
    latest = max(part.history.writes for part in parts)
    first = _first_row(spec)
    for part in parts:
        keys = part.keys(checkpoint)
        positions = _is_mine(spec, keys).nonzero().squeeze(1)
        behind = latest - part.history.writes
        yield _Share(part, positions, keys[positions] - first, behind)


def _is_mine(spec: VariableSpec, keys: torch.Tensor) -> torch.Tensor:
    """Return which keys of a whole table belong to the part that a spec describes."""
    if spec.table.HasField("dynamic"):
        dynamic = spec.table.dynamic
        return part_of_keys(keys, max(1, dynamic.parts)) == dynamic.part
    first = _first_row(spec)
    return (keys >= first) & (keys < first + spec.tensor.shape[0])


def _history(spec: VariableSpec, parts: Sequence[TablePart]) -> TableHistory:
    """What became of tables is counted once, wherever their rows are now."""
    if len(parts) == 1:
        return parts[0].history
    histories = [part.history for part in parts]
    counts = histories if not spec.table.dynamic.part else []
    latest = max(each.writes for each in histories)
    return TableHistory(
        writes=latest,
        swept=latest - max(each.writes - each.swept for each in histories),
        evicted_rows=sum(each.evicted_rows for each in counts),
        dropped_gradients=sum(each.dropped_gradients for each in counts),
    )


def _fill(
    checkpoint: Checkpoint, arena: Arena, source: WholeTable, shares: Sequence[_Share]
) -> None:
    parts = {part.table.name: part for part in source.parts}
    place = 0
    for share in shares:
        part = parts.get(share.part.table.name)
        for rows in _rows(checkpoint, arena, part, share):
            arena.storage[place : place + len(rows)] = rows
            place += len(rows)


def _rows(
    checkpoint: Checkpoint, arena: Arena, part: TablePart | None, share: _Share
) -> Iterator[torch.Tensor]:
    if part is None:
        # An optimizer that had not stepped this part yet.
        yield arena.initial.rows(share.keys)
        return
    for _, rows in part.runs(checkpoint, share.positions):
        yield rows


def _restore_admission(checkpoint: Checkpoint, table: Table, parts: Sequence[TablePart]) -> None:
    seen = torch.cat([part.vector(checkpoint, SEEN) for part in parts])
    sights = torch.cat([part.vector(checkpoint, SIGHTS) for part in parts])
    mine = _is_mine(table.value.initial.spec, seen)
    table.admission.restore(seen[mine], sights[mine])
