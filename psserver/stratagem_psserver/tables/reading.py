"""Making tables from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from stratagem_proto.checkpoint.entries import COUNTS, SEEN, SIGHTS, TOUCHED
from stratagem_proto.checkpoint.folder import Checkpoint
from stratagem_proto.checkpoint.wholes import TablePart, Whole, WholeTable
from stratagem_proto.division import PartRows
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
    """Make a table, or a part of one, with its rows in a checkpoint.

    Args:
        checkpoint: The checkpoint.
        spec: The description of the table on this server.
        whole: The whole table in the checkpoint; maybe a variable that is not a table there.
        slots: Its slots in the checkpoint.

    Raises:
        ResourceExhaustedError: There is not enough memory.
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
    """Return the description of a table with the initializer that it has in the checkpoint."""
    made = VariableSpec()
    made.CopyFrom(spec)
    if isinstance(whole, WholeTable):
        made.initializer.CopyFrom(whole.spec.initializer)
    return made


def _slot_spec(spec: VariableSpec, whole: Whole, slot: Whole) -> VariableSpec:
    # If all rows were saved, the initial value is never used.
    initializer = Initializer(constant=0.0)
    if isinstance(slot, WholeTable):
        initializer = slot.spec.initializer
    return VariableSpec(
        name=spec.name + slot.name.removeprefix(whole.name),
        tensor=TensorSpec(
            dtype=slot.tensor.dtype, shape=spec.tensor.shape[: len(slot.tensor.shape)]
        ),
        kind=VARIABLE_KIND_SLOT,
        slot_of=spec.name,
        initializer=initializer,
        table=TableSpec(),
    )


def _read_all(
    checkpoint: Checkpoint, table: Table, arenas: list[Arena], sources: Sequence[Whole]
) -> None:
    part = PartRows.of(table.value.initial.spec)
    keys = torch.arange(part.count)
    table.adopt(arenas, [keys, torch.zeros_like(keys)], TableHistory())
    for arena, source in zip(table.arenas, sources, strict=True):
        at_once = max(1, _ROWS_AT_ONCE_BYTES // max(1, arena.row_bytes))
        for start in range(0, part.count, at_once):
            table.fill(arena, start, source.read_part(checkpoint, part.some(start, at_once)))


@dataclass(frozen=True)
class _Share:
    """The rows that a part of a table gets from one part in the checkpoint.

    Attributes:
        part: The part in the checkpoint.
        positions: The positions of the rows in it.
        keys: Their keys on this server.
        behind: How many writes its clock is behind that of the part with the most writes.
    """

    part: TablePart
    positions: torch.Tensor
    keys: torch.Tensor
    behind: int

    def marks(self, checkpoint: Checkpoint) -> Sequence[torch.Tensor]:
        """Return the keys, the times of the last writes, and the counts of writes."""
        touched = self.part.vector(checkpoint, TOUCHED)[self.positions] + self.behind
        return self.keys, touched, self.part.vector(checkpoint, COUNTS)[self.positions]


def _read_stored(
    checkpoint: Checkpoint, table: Table, arenas: list[Arena], sources: Sequence[Whole]
) -> None:
    spec, whole = table.value.initial.spec, sources[0]
    assert isinstance(whole, WholeTable)
    parts = _concerned(spec, whole)
    shares = list(_shares(checkpoint, spec, parts))
    marks = zip(*(share.marks(checkpoint) for share in shares), strict=True)
    whole_marks = list(map(torch.cat, marks))[: len(table.marks)]
    table.adopt(arenas, whole_marks, _history(spec, parts))
    for arena, source in zip(table.arenas, sources, strict=True):
        assert isinstance(source, WholeTable)
        for place, rows in _placed(checkpoint, arena, source, shares):
            table.fill(arena, place, rows)
    _restore_admission(checkpoint, table, parts)
    table.fit()


def _concerned(spec: VariableSpec, whole: WholeTable) -> list[TablePart]:
    """Return the parts in a checkpoint that may have rows of the part that a spec describes."""
    parts, keys = whole.parts, spec.table.dynamic
    if whole.is_dynamic:
        same = len(parts) == max(1, keys.parts)
        return [parts[keys.part]] if same else list(parts)
    mine = PartRows.of(spec)
    return [part for part in parts if part.rows.shared(mine)[0]] or list(parts[:1])


def _shares(
    checkpoint: Checkpoint, spec: VariableSpec, parts: Sequence[TablePart]
) -> Iterator[_Share]:
    latest = max(part.history.writes for part in parts)
    mine = PartRows.of(spec)
    for part in parts:
        keys = part.keys(checkpoint)
        positions = _is_mine(spec, keys).nonzero().squeeze(1)
        behind = latest - part.history.writes
        yield _Share(part, positions, mine.local(keys[positions]), behind)


def _is_mine(spec: VariableSpec, keys: torch.Tensor) -> torch.Tensor:
    """Return a mask of the keys of a whole table that belong to the part of a spec."""
    if spec.table.HasField("dynamic"):
        dynamic = spec.table.dynamic
        return part_of_keys(keys, max(1, dynamic.parts)) == dynamic.part
    return PartRows.of(spec).has(keys)


def _history(spec: VariableSpec, parts: Sequence[TablePart]) -> TableHistory:
    """Return the history of a part; the counts of several parts go to the first part here."""
    if len(parts) == 1:
        return parts[0].history
    histories = [part.history for part in parts]
    counts = histories if not spec.table.dynamic.part else []
    latest = max(each.writes for each in histories)
    evicted = sum(each.evicted_rows for each in counts)
    # Rows of several parts are taken for written now: these have other times.
    return TableHistory(
        writes=latest,
        swept=latest - max(each.writes - each.swept for each in histories),
        evicted_rows=evicted,
        aged=evicted,
        dropped_gradients=sum(each.dropped_gradients for each in counts),
    )


def _placed(
    checkpoint: Checkpoint, arena: Arena, source: WholeTable, shares: Sequence[_Share]
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the rows of all shares, some at a time, each time with the position of the first."""
    parts = {part.table.name: part for part in source.parts}
    place = 0
    for share in shares:
        part = parts.get(share.part.table.name)
        for rows in _rows(checkpoint, arena, part, share):
            yield place, rows
            place += len(rows)


def _rows(
    checkpoint: Checkpoint, arena: Arena, part: TablePart | None, share: _Share
) -> Iterator[torch.Tensor]:
    if part is None:
        # The optimizer had not stepped this part yet.
        yield arena.begun(share.keys)
        return
    for _, rows in part.runs(checkpoint, share.positions):
        yield rows


def _restore_admission(checkpoint: Checkpoint, table: Table, parts: Sequence[TablePart]) -> None:
    seen = torch.cat([part.vector(checkpoint, SEEN) for part in parts])
    sights = torch.cat([part.vector(checkpoint, SIGHTS) for part in parts])
    mine = _is_mine(table.value.initial.spec, seen)
    table.admission.restore(seen[mine], sights[mine])
