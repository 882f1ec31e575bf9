"""Rows that are evicted because nothing has written them for some time."""

from __future__ import annotations

import random

import torch

from stratagem_proto.v1.checkpoint_pb2 import TableHistory
from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.tables.retention import IdleTime
from stratagem_psserver.tables.table import Table
from tests.full import a_few
from tests.psserver.tables.specs import ZEROS, dynamic, table_spec

LIMIT = 800


def written(table: Table, *keys: int) -> None:
    each = torch.tensor(keys)
    found = table.find(each)
    table.make_room(found, VariableMemoryLimit())
    table.store(found, {table.value: torch.ones(len(keys), 2)})


def kept(table: Table) -> list[int]:
    return sorted(table.stored()[0].tolist())


def table_of(limit: int = LIMIT) -> Table:
    return Table(table_spec("t", (0, 2), ZEROS, dynamic(evict_after_milliseconds=limit)))


def test_a_row_goes_once_it_was_idle_for_the_time_and_not_before() -> None:
    table = table_of()
    written(table, 1, 2, 3)
    table.pass_time(100)
    written(table, 2)
    for _ in range(7):
        assert table.pass_time(100) == 0
    assert table.pass_time(100) == 2
    assert kept(table) == [2]
    assert table.pass_time(100) == 1
    assert kept(table) == []
    assert table.statistics().evicted_rows == 3


@a_few("seed", range(5), "one draw is as good as another before a commit")
def test_rows_go_within_a_quarter_more_whatever_is_written_when(seed: int) -> None:
    chance, table, now = random.Random(seed), table_of(), 0
    last: dict[int, int] = {}
    for _ in range(300):
        for key in chance.sample(range(20), chance.randrange(3)):
            written(table, key)
            last[key] = now
        step = chance.randrange(1, LIMIT // 8)
        now += step
        table.pass_time(step)
        idle = {key: now - then for key, then in last.items()}
        assert {key for key, time in idle.items() if time < LIMIT} <= {*kept(table)}
        assert {*kept(table)} <= {key for key, time in idle.items() if time <= LIMIT * 1.25}
        assert len(table.idle_time.moments) <= 11


def test_whoever_repeats_writes_and_passages_has_the_same_rows() -> None:
    chance, events = random.Random(4), list[tuple[int, ...] | int]()
    for _ in range(200):
        events.append(tuple(chance.sample(range(9), 2)))
        events.append(chance.randrange(200))
    one, other = table_of(), table_of()
    for table in (one, other):
        for event in events:
            if isinstance(event, int):
                table.pass_time(event)
            else:
                written(table, *event)
    assert one.history() == other.history()
    for mine, theirs in zip(one.marks, other.marks, strict=True):
        assert torch.equal(mine[: len(one)], theirs[: len(other)])
    assert one.statistics().evicted_rows


def test_a_history_goes_on() -> None:
    time = IdleTime(LIMIT)
    for number in range(20):
        time = time.after(90, number)
    history = TableHistory()
    time.describe(history)
    assert IdleTime(LIMIT).restored(history) == time
    # Without a limit nothing is kept, and with another one nothing goes before it.
    assert IdleTime().restored(history).moments == ()
    longer = IdleTime(10 * LIMIT).restored(history)
    assert longer.after(1, 20).idle_since == -1


def test_tables_without_a_limit_keep_their_rows() -> None:
    table = table_of(0)
    written(table, 1)
    assert table.idle_time.limit == 0
    assert table.history().moments == []
