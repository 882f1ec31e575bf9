"""Rows that make room because they were written least often."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from stratagem_proto.v1.variable_pb2 import EVICTION_ORDER_RAREST
from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.tables.table import Table
from tests.psserver.tables.specs import ZEROS, dynamic, table_spec
from tests.psserver.tables.test_idle_time import kept, written

MOST = 64


def rarest_goes(most: int = MOST) -> Table:
    limits = dynamic(max_rows=most, eviction_order=EVICTION_ORDER_RAREST)
    return Table(table_spec("t", (0, 2), ZEROS, limits))


def test_rows_written_least_often_go_first_and_of_equals_the_oldest() -> None:
    table = rarest_goes(4)
    for keys in [(1, 2), (1, 2), (3,), (4,), (1, 2)]:
        written(table, *keys)
    written(table, 5)
    assert kept(table) == [1, 2, 4, 5]
    written(table, 6, 7)
    assert kept(table) == [1, 2, 6, 7]


@pytest.mark.full("what goes first is shown row by row")
def test_what_is_popular_stays_where_the_oldest_would_go() -> None:
    """Two keys that come often, with long breaks, in a stream of keys that come once."""
    found = {}
    for name, order in (("rarest", EVICTION_ORDER_RAREST), ("oldest", 0)):
        limits = dynamic(max_rows=MOST, eviction_order=order)
        table = Table(table_spec("t", (0, 2), ZEROS, limits))
        lost = 0
        for number in range(1000):
            written(table, 10_000 + number)
            if number % 100 == 0:
                lost += int((table.find(torch.tensor([1, 2])).positions < 0).sum())
                for _ in range(10):
                    written(table, 1, 2)
        found[name] = lost
    # Before they first came, and each time.
    assert found == {"rarest": 2, "oldest": 20}


def test_old_favourites_leave() -> None:
    table = rarest_goes()
    for _ in range(200):
        written(table, 1)
    rounds = 0
    while 1 in kept(table):
        written(table, *range(1000 + rounds * 8, 1008 + rounds * 8))
        rounds += 1
    # Each turnover of the table halves 200 once: it is as rare as others after eight.
    assert 6 * MOST < rounds * 8 < 11 * MOST


@pytest.mark.full("which rows go first is shown row by row")
def test_counts_go_with_their_rows() -> None:
    generator = torch.Generator().manual_seed(2)
    table, times, aged = rarest_goes(), Counter[int](), 0
    for _ in range(400):
        keys = (torch.randn(6, generator=generator) * 40).long().unique()
        written(table, *keys.tolist())
        times.update(keys.tolist())
        if (now := table.history().aged) != aged:
            aged = now
        known = {*kept(table)}
        times = Counter({key: n for key, n in times.items() if key in known})
        stored, _, counts = (mark[: len(table)].tolist() for mark in table.marks)
        assert all(count <= times[key] for key, count in zip(stored, counts, strict=True))
        assert len({*stored}) == len(stored)
    assert aged


def test_counting_takes_four_bytes_a_row() -> None:
    limits = dynamic(eviction_order=EVICTION_ORDER_RAREST)
    counting = Table(table_spec("t", (0, 2), ZEROS, limits))
    plain = Table(table_spec("t", (0, 2), ZEROS, dynamic()))
    limit = VariableMemoryLimit()
    for table in (counting, plain):
        found = table.find(torch.arange(1000))
        table.make_room(found, limit)
        table.store(found, {table.value: torch.zeros(1000, 2)})
    assert counting.capacity == plain.capacity
    assert counting.nbytes - plain.nbytes == 4 * plain.capacity
