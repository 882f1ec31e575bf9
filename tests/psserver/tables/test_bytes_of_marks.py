"""Keys of a fixed vocabulary and times of writes, in 32 bits for as long as they fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stratagem_proto.key_index import page_of
from stratagem_proto.v1.checkpoint_pb2 import TableHistory
from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.tables.arena import Arena
from stratagem_psserver.tables.table import Table
from stratagem_psserver.tables.table_disk import TableDisk
from tests.psserver.tables.specs import NORMAL, ZEROS, dynamic, table_spec

LATEST = 2**31 - 1


def write(table: Table, *keys: int) -> None:
    each = torch.tensor(keys)
    found = table.find(each)
    table.make_room(found, VariableMemoryLimit())
    table.store(found, {arena: each[:, None].float().expand(-1, 2) for arena in table.arenas})


def after(table: Table, writes: int) -> Table:
    """The table, which has had so many writes."""
    table.adopt([], [torch.zeros(0, dtype=torch.int64)] * 2, TableHistory(writes=writes))
    return table


def ages(table: Table) -> dict[int, int]:
    """How many writes ago each key was written."""
    keys, touched = table.stored()
    times = (table.history().writes - touched.long()).tolist()
    return dict(zip(keys.tolist(), times, strict=True))


def test_a_row_of_a_fixed_vocabulary_on_a_disk_takes_sixteen_bytes_of_memory(
    tmp_path: Path,
) -> None:
    count, disk = 100_000, TableDisk(1 << 20, str(tmp_path))
    table = Table(table_spec("t", (count, 2), NORMAL), disk)
    for keys in torch.randperm(count, generator=torch.Generator().manual_seed(0)).split(9000):
        write(table, *keys.tolist())
    assert len(table) == table.capacity == count
    assert table.nbytes == 16 * count
    every = torch.arange(count)
    assert torch.equal(table.value.read(table.find(every))[:, 0], every.float())


@pytest.mark.parametrize("evict_after", [3, 2**33, 2**63])
def test_times_go_on_where_they_do_not_fit_into_32_bits_any_more(evict_after: int) -> None:
    spec = table_spec("t", (0, 2), ZEROS, dynamic(evict_after_writes=evict_after))
    early, late = Table(spec), after(Table(spec), LATEST - 4)
    snapshots = list[tuple[torch.Tensor, torch.Tensor]]()
    for number in range(10):
        for table in (early, late):
            write(table, 20 + number, number % 3)
        assert ages(early) == ages(late)
        held = late.snapshot()
        write(late, 7)
        write(early, 7)
        snapshots.append((held.rows(1, torch.arange(held.count)), late.stored()[1].clone()))
    assert len(late) == (14 if evict_after > 3 else len(early))
    assert late.marks[1].dtype == torch.int64 and early.marks[1].dtype == torch.int32
    assert late.history().writes > LATEST
    for times, later in snapshots:
        assert times.dtype == torch.int64 and (times[: len(later)] <= later[: len(times)]).all()
        assert (times >= LATEST - 4).all()


def test_times_of_a_checkpoint_that_do_not_fit_are_kept() -> None:
    table = Table(table_spec("t", (9, 2), ZEROS))
    times = torch.tensor([LATEST + 5, 0, LATEST])
    table.adopt([], [torch.tensor([8, 0, 3]), times], TableHistory(writes=LATEST + 6))
    table.fill(0, {table.value: torch.ones(3, 2)})
    assert table.stored()[1].tolist() == times.tolist()
    write(table, 0)
    assert ages(table) == {8: 2, 0: 0, 3: 7}


@pytest.mark.parametrize("vocabulary", [LATEST, LATEST + 1, LATEST + 9])
def test_the_last_keys_of_a_large_vocabulary_are_those_that_were_written(vocabulary: int) -> None:
    table = Table(table_spec("t", (vocabulary, 2), NORMAL))
    table.attach([Arena(table, table_spec("t/s", (vocabulary, 2), NORMAL))])
    keys = [vocabulary - 1, 0, vocabulary - 2]
    write(table, *keys)
    assert table.stored()[0].tolist() == keys == table.snapshot().keys().tolist()
    assert table.find(torch.tensor([*keys, vocabulary - 3])).positions.tolist() == [0, 1, 2, -1]
    values = table.value.read(table.find(torch.tensor(keys)))
    assert torch.equal(values, torch.tensor(keys)[:, None].float().expand(-1, 2))


def test_a_page_of_short_keys_begins_after_any_key() -> None:
    keys = torch.tensor([5, LATEST, 2], dtype=torch.int32)
    for last in (2**32 + 1, 2**40, LATEST):
        assert page_of(keys, last, 0)[0].tolist() == []
    assert page_of(keys, -(2**40), 0)[0].tolist() == [2, 5, LATEST]
    assert page_of(keys, 4, 1)[0].dtype == torch.int64
