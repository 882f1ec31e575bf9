"""What a table says of its rows at each publication, compared with their bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.tables.arena import Arena
from stratagem_psserver.tables.table import KEY_CHANGED, VALUE_CHANGED, Table
from stratagem_psserver.variables.snapshots import Snapshot
from tests.psserver.tables.specs import ZEROS, dynamic, hosting, table_of, table_spec

KINDS: dict[str, Callable[[], Any]] = {
    "fixed": lambda: table_spec("t", (80, 2)),
    "small": lambda: table_spec("t", (0, 2), table=dynamic(max_rows=12, admission_count=2)),
    "forgetful": lambda: table_spec("t", (0, 2), table=dynamic(evict_after_writes=4)),
    "idle": lambda: table_spec("t", (0, 2), table=dynamic(evict_after_milliseconds=50)),
    "narrow": lambda: table_spec("t", (0, 2), row_dtype=torch.bfloat16, table=dynamic()),
}

ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sets(st.integers(0, 79), min_size=1, max_size=9)),
        st.tuples(st.just("state"), st.sets(st.integers(0, 79), min_size=1, max_size=9)),
        st.tuples(st.sampled_from(["publish", "slot", "time", "snapshot"]), st.just({0})),
    ),
    max_size=40,
)


def write(table: Table, keys: set[int], arena: Arena, seed: int) -> None:
    rows = torch.tensor(sorted(keys))
    found = table.find(rows)
    if found.num_new and table.admission.needed > 1:
        table.drop(found.new_keys)
    table.make_room(found, VariableMemoryLimit())
    values = torch.rand(len(rows), 2, generator=torch.Generator().manual_seed(seed))
    table.store(found, {arena: values})


def stored(table: Table) -> tuple[torch.Tensor, torch.Tensor]:
    value = table.value.storage[: len(table)].clone().view(torch.uint8).flatten(1)
    return value, table.stored()[0].clone()


def require_marked(table: Table, before: tuple[torch.Tensor, torch.Tensor]) -> None:
    marks, (value, keys) = table.publish(), stored(table)
    assert marks is not None and len(marks) == len(table)
    assert {*marks.tolist()} <= {0, VALUE_CHANGED, KEY_CHANGED}
    both = min(len(table), len(before[1]))
    differs = (value[:both] != before[0][:both]).any(1)
    moved = keys[:both] != before[1][:both]
    assert (marks[:both][differs] & VALUE_CHANGED).all()
    assert (marks[:both][moved] == KEY_CHANGED).all()
    assert (marks[both:] == KEY_CHANGED).all()


class History:
    """What becomes of a table, and what was there when it was published last."""

    def __init__(self, kind: str) -> None:
        self.store, _ = hosting(KINDS[kind]())
        self.table = table_of(self.store.get("t"))
        write(self.table, {1, 2, 3}, self.table.value, 0)
        assert self.table.publish() is None
        self.before = stored(self.table)
        self.snapshots: list[tuple[Snapshot, torch.Tensor]] = []
        self.writes = 0

    def write(self, keys: set[int]) -> None:
        self.writes += 1
        write(self.table, keys, self.table.value, self.writes)

    def state(self, keys: set[int]) -> None:
        self.writes += 1
        write(self.table, keys, self.table.arenas[-1], self.writes)

    def slot(self, _: set[int]) -> None:
        if len(self.table.arenas) == 1:
            self.table.attach([Arena(self.table, table_spec("t/s", (80, 2), ZEROS))])

    def time(self, _: set[int]) -> None:
        if self.table.idle_time.limit:
            self.table.pass_time(30)

    def snapshot(self, _: set[int]) -> None:
        self.snapshots.append((Snapshot(self.store), stored(self.table)[0]))

    def publish(self, _: set[int]) -> None:
        require_marked(self.table, self.before)
        self.before = stored(self.table)

    def require_snapshots(self) -> None:
        for snapshot, value in self.snapshots:
            taken = torch.cat([self.table.value.storage[:0], *snapshot.values[0].runs()])
            assert torch.equal(taken.view(torch.uint8).flatten(1), value)


@pytest.mark.parametrize("kind", KINDS)
@given(acts=ACTS)
@settings(max_examples=60, deadline=None)
def test_every_row_that_differs_is_marked(kind: str, acts: list[tuple[str, set[int]]]) -> None:
    history = History(kind)
    for act, keys in acts:
        getattr(history, act)(keys)
    history.publish(set())
    history.require_snapshots()


def test_rows_that_nobody_writes_are_not_marked() -> None:
    store, _ = hosting(KINDS["fixed"]())
    table = table_of(store.get("t"))
    write(table, {*range(80)}, table.value, 0)
    table.publish()
    write(table, {5, 9}, table.value, 1)
    marks = table.publish()
    assert marks is not None
    assert sorted(table.stored()[0][marks.nonzero().squeeze(1)].tolist()) == [5, 9]
    again = table.publish()
    assert again is not None and not again.any()


def test_a_table_that_is_published_takes_two_bytes_a_row_at_most() -> None:
    store, _ = hosting(table_spec("t", (1 << 20, 16), ZEROS))
    table = table_of(store.get("t"))
    for begin in range(0, 1 << 20, 1 << 17):
        rows = torch.arange(begin, begin + (1 << 17))
        found = table.find(rows)
        table.make_room(found, VariableMemoryLimit())
        table.store(found, {table.value: torch.ones(len(rows), 16)})
    before = table.nbytes
    table.publish()
    snapshot = table.snapshot(values_only=True)
    found = table.find(torch.arange(1000))
    table.store(found, {table.value: torch.zeros(1000, 16)})
    # The marks, which rows have a copy, and the copies.
    copies = 1024 * (16 * 4 + 8 + 4)
    assert table.nbytes - before == table.capacity
    assert table.nbytes - before + snapshot.nbytes <= 2 * table.capacity + copies
