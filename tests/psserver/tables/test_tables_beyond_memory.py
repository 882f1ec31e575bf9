"""Tables whose rows are mostly in files, compared with tables in memory to the bit."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from stratagem_proto.errors import DataLossError, ResourceExhaustedError
from stratagem_proto.v1.variable_pb2 import Initializer, UniformRange
from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.tables.arena import Arena
from stratagem_psserver.tables.table import Table
from stratagem_psserver.tables.table_disk import TableDisk
from tests.psserver.tables.specs import NORMAL, ZEROS, dynamic, table_spec

COLUMNS, KEYS, WRITES, AT_ONCE = 64, 20_000, 30, 2000
BUDGET = 1 << 20


def both(disk: TableDisk, **limits: int) -> tuple[Table, Table]:
    """A table in files and one in memory, with a slot of an optimizer each."""
    tables = [
        Table(table_spec("t", (0, COLUMNS), ZEROS, dynamic(**limits)), of) for of in (disk, None)
    ]
    for table in tables:
        table.attach([Arena(table, table_spec("t/s", (0, COLUMNS), ZEROS, dynamic(**limits)))])
    return tables[0], tables[1]


def step(table: Table, keys: torch.Tensor) -> None:
    """Do what Adagrad does."""
    found = table.find(keys)
    table.make_room(found, VariableMemoryLimit())
    value, state = (arena.read(found) for arena in table.arenas)
    gradient = value * 0.3 + keys[:, None] % 7
    state = state + gradient**2
    value = value - 0.1 * gradient / (state.sqrt() + 1e-6)
    table.store(found, dict(zip(table.arenas, (value, state), strict=True)))


def drawn(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    keys: torch.Tensor = (torch.rand(AT_ONCE, generator=generator) ** 3 * KEYS).long().unique()
    return keys


def require_same(one: Table, other: Table) -> None:
    assert torch.equal(one.stored()[0], other.stored()[0])
    assert torch.equal(one.stored()[1], other.stored()[1])
    for keys in one.stored()[0].split(AT_ONCE):
        for arena, of in zip(one.arenas, other.arenas, strict=True):
            assert torch.equal(arena.read(one.find(keys)), of.read(other.find(keys)))


@pytest.mark.parametrize("limits", [{}, {"max_rows": 6000}, {"evict_after_writes": 12}], ids=str)
def test_steps_over_rows_in_files_give_the_bytes_of_steps_in_memory(
    tmp_path: Path, limits: dict[str, int]
) -> None:
    disk = TableDisk(BUDGET, str(tmp_path))
    table, in_memory = both(disk, **limits)
    for number in range(WRITES):
        for each in (table, in_memory):
            step(each, drawn(number))
    require_same(table, in_memory)
    assert table.on_disk.log.read_bytes > BUDGET and disk.counts.evicted_bytes > BUDGET
    assert disk.resident_bytes <= BUDGET
    assert table.nbytes < in_memory.nbytes / 4


def test_a_server_has_no_more_rows_in_memory_than_it_may(tmp_path: Path) -> None:
    disk = TableDisk(4 * BUDGET, str(tmp_path))
    table, _ = both(disk)
    for number in range(WRITES):
        step(table, drawn(number)[::2] + 500 * number)
        assert disk.resident_bytes <= 4 * BUDGET
    assert disk.counts.evicted_bytes > 4 * BUDGET < disk.file_bytes


def test_a_snapshot_of_rows_in_files_has_their_bytes_of_its_moment(tmp_path: Path) -> None:
    table, in_memory = both(TableDisk(BUDGET, str(tmp_path)))
    tables = (table, in_memory)
    for each in tables:
        for number in range(WRITES // 2):
            step(each, drawn(number))
    was = [arena.storage[: len(in_memory)].clone() for arena in in_memory.arenas]
    snapshots = [each.snapshot() for each in tables]
    # More rows than before: the files grow while the snapshot is open.
    for each in tables:
        for number in range(WRITES // 2, WRITES):
            step(each, drawn(number) + number % 3 * KEYS)
    marks = len(table.marks)
    for number, rows in enumerate(was, marks):
        assert torch.equal(torch.cat(list(snapshots[0].runs(number))), rows)
    for number in range(marks):
        read = [torch.cat(list(snapshot.runs(number))) for snapshot in snapshots]
        assert torch.equal(*read)
    require_same(*tables)


@contextmanager
def files_of_at_most(nbytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_table_that_the_disk_has_no_room_for_keeps_its_rows_and_takes_more_once_it_has(
    tmp_path: Path,
) -> None:
    table, in_memory = both(TableDisk(BUDGET, str(tmp_path)))
    for each in (table, in_memory):
        step(each, torch.arange(1000))
    with files_of_at_most(table.on_disk.log.file_bytes):
        with pytest.raises(ResourceExhaustedError, match=r"'t' need room in .* File too large"):
            step(table, torch.arange(500, 5000))
        require_same(table, in_memory)
        for each in (table, in_memory):
            step(each, torch.arange(500))
    for each in (table, in_memory):
        step(each, torch.arange(500, 5000))
    require_same(table, in_memory)


def test_a_disk_that_cannot_read_a_row_ends_all_use_of_its_tables(tmp_path: Path) -> None:
    table, _ = both(TableDisk(BUDGET, str(tmp_path)))
    for keys in torch.arange(12_000).split(AT_ONCE):
        step(table, keys)
    unreadable = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
    try:
        os.dup2(unreadable, table.on_disk.log._file.number)
        with pytest.raises(DataLossError, match="could not read rows of 't'"):
            step(table, torch.arange(1000))
    finally:
        os.close(unreadable)
    with pytest.raises(DataLossError, match="could not read rows of 't'"):
        step(table, torch.arange(11_900, 12_000))


def test_rows_on_the_disk_begin_an_optimizers_state_that_is_made_later(tmp_path: Path) -> None:
    disk = TableDisk(BUDGET, str(tmp_path))
    spec = table_spec("t", (0, COLUMNS), NORMAL, dynamic())
    tables = [Table(spec, of) for of in (disk, None)]
    for table in tables:
        for number in range(WRITES // 3):
            found = table.find(drawn(number))
            table.make_room(found, VariableMemoryLimit())
            table.store(found, {table.value: table.value.read(found) + 1})
    snapshots = [table.snapshot() for table in tables]
    for table in tables:
        begun = Initializer(seed=3, uniform=UniformRange(low=0.5, high=1.0))
        state = table_spec("t/s", (0, COLUMNS), begun, dynamic())
        table.attach([Arena(table, state)])
        for number in range(WRITES // 3, WRITES):
            step(table, drawn(number))
    require_same(*tables)
    for number in range(2):
        read = [torch.cat(list(snapshot.runs(number))) for snapshot in snapshots]
        assert torch.equal(*read)
    for table, snapshot in zip(tables, snapshots, strict=True):
        table.close_snapshot(snapshot)
        table.detach(table.arenas[1])
        table.attach([Arena(table, state)])
        step(table, drawn(0))
    require_same(*tables)


def test_a_snapshot_has_rows_that_are_evicted_and_a_state_that_is_deleted_meanwhile(
    tmp_path: Path,
) -> None:
    tables = both(TableDisk(BUDGET, str(tmp_path)), evict_after_writes=5)
    for table in tables:
        for number in range(4):
            step(table, drawn(number))
    snapshots = [table.snapshot() for table in tables]
    for table in tables:
        table.detach(table.arenas[1])
        for number in range(20):
            keys = torch.arange(1_000_000 + number, 1_000_100 + number)
            found = table.find(keys)
            table.make_room(found, VariableMemoryLimit())
            table.store(found, {table.value: table.value.read(found) + number})
    assert len(tables[0]) < 300
    for number in range(len(tables[0].marks) + 2):
        read = [torch.cat(list(snapshot.runs(number))) for snapshot in snapshots]
        assert torch.equal(*read)
    require_same(*tables)


def test_what_a_checkpoint_reads_does_not_drive_hot_rows_out(tmp_path: Path) -> None:
    disk = TableDisk(4 * BUDGET, str(tmp_path))
    table, _ = both(disk)
    for keys in torch.arange(30_000).split(AT_ONCE):
        step(table, keys)
    hot = torch.arange(2000)
    for _ in range(10):
        step(table, hot)
    missed = disk.counts.missed
    for number in range(len(table.marks), len(table.marks) + 2):
        for _ in table.snapshot().runs(number):
            pass
    step(table, hot)
    assert disk.counts.missed == missed
