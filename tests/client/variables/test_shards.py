"""The arithmetic of shards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stratagem import InvalidArgumentError, InvalidTypeError
from stratagem._parameter_server.variables.sharded_variable import index_rows
from stratagem._parameter_server.variables.shards import Layout, merge

layouts = st.lists(st.integers(0, 5), min_size=1, max_size=5).map(
    lambda sizes: Layout(tuple(sizes))
)
filled = layouts.filter(lambda layout: layout.total > 0)
in_turn = st.builds(Layout.in_turn, st.integers(1, 40), st.integers(1, 7))


def whole_of(layout: Layout) -> torch.Tensor:
    return torch.arange(float(2 * layout.total)).reshape(layout.total, 2)


@given(rows=st.integers(1, 200), shards=st.integers(1, 20))
def test_rows_are_divided_as_evenly_as_possible(rows: int, shards: int) -> None:
    layout = Layout.div(rows, shards)
    assert (layout.total, len(layout.sizes)) == (rows, shards)
    assert max(layout.sizes) - min(layout.sizes) <= 1
    assert list(layout.sizes) == sorted(layout.sizes, reverse=True)
    assert layout.is_div


@given(layout=layouts)
def test_shards_follow_on_each_other(layout: Layout) -> None:
    whole = whole_of(layout)
    assert torch.equal(torch.cat([rows.select(whole) for rows in layout.shards]), whole)


@given(layout=layouts | in_turn)
def test_shards_are_joined_to_the_whole(layout: Layout) -> None:
    whole = whole_of(layout)
    shards = [rows.select(whole) for rows in layout.shards]
    assert [len(shard) for shard in shards] == list(layout.sizes)
    assert torch.equal(layout.join(shards), whole)


@given(layout=in_turn)
def test_each_row_goes_to_the_shard_after_that_of_the_row_before_it(layout: Layout) -> None:
    routed = layout.route(torch.arange(layout.total))
    count = len(layout.sizes)
    for number, one in enumerate(routed):
        assert one.positions.tolist() == list(range(number, layout.total, count))
        assert one.rows.tolist() == list(range(layout.sizes[number]))


@given(data=st.data(), layout=filled | in_turn)
def test_rows_come_back_in_the_order_asked(data: st.DataObject, layout: Layout) -> None:
    numbers = st.integers(0, layout.total - 1)
    rows = torch.tensor(data.draw(st.lists(numbers)), dtype=torch.int64)
    whole = whole_of(layout)
    if data.draw(st.booleans()):
        rows = rows.sort().values
    routed = layout.route(rows)
    shards = [rows.select(whole) for rows in layout.shards]
    parts = [shard[one.rows] for shard, one in zip(shards, routed, strict=True)]
    assert torch.equal(merge(parts, routed), whole[rows])


@given(data=st.data(), layout=filled)
def test_slices_of_shards_make_up_the_slice_of_the_whole(
    data: st.DataObject, layout: Layout
) -> None:
    edge = st.none() | st.integers(-layout.total - 2, layout.total + 2)
    step = data.draw(st.none() | st.integers(1, 4))
    rows = range(layout.total)[data.draw(edge) : data.draw(edge) : step]
    whole = whole_of(layout)
    shards = [one.select(whole) for one in layout.shards]
    pieces = [shards[number][piece] for number, piece in layout.slices(rows)]
    assert torch.equal(torch.cat([whole[:0], *pieces]), whole[list(rows)])


@pytest.mark.parametrize("row", [-1, 6])
def test_rows_that_do_not_exist_are_refused(row: int) -> None:
    with pytest.raises(InvalidArgumentError, match="rows 0 to 5"):
        Layout.div(6, 2).route(torch.tensor([0, row]))


def test_a_shard_without_rows_is_routed_to_with_none() -> None:
    routed = Layout((2, 0, 2)).route(torch.tensor([3, 0, 3]))
    assert [one.rows.tolist() for one in routed] == [[0], [], [1, 1]]
    assert [one.positions.tolist() for one in routed] == [[1], [], [0, 2]]


WHOLE = np.arange(60.0).reshape(5, 4, 3)

_edges = st.none() | st.integers(-7, 7)
_slices = st.builds(slice, _edges, _edges, st.sampled_from([None, 1, 2, 3, -1, -2, -3]))
_items = st.none() | _slices | st.integers(-3, 2)


@given(items=st.lists(_items, max_size=5), at=st.none() | st.integers(0, 5))
def test_indexing_follows_numpy(items: list[Any], at: int | None) -> None:
    if sum(item is not None for item in items) > 3:
        return
    if at is not None:
        items.insert(at, ...)
    index = tuple(items)
    asked: list[range] = []

    def rows(wanted: range) -> torch.Tensor:
        asked.append(wanted)
        return torch.tensor(WHOLE[list(wanted)])

    found = index_rows(WHOLE.shape, index, rows)
    np.testing.assert_array_equal(found.numpy(), WHOLE[index])
    assert asked[0].step > 0


def test_only_the_rows_of_an_index_are_asked_for() -> None:
    asked: list[list[int]] = []

    def rows(wanted: range) -> torch.Tensor:
        asked.append(list(wanted))
        return torch.tensor(WHOLE[list(wanted)])

    index_rows(WHOLE.shape, (slice(None, None, -2), 1), rows)
    index_rows(WHOLE.shape, (None, -1), rows)
    assert asked == [[0, 2, 4], [4]]


@pytest.mark.parametrize("index", [(0, 0, 0, 0), (..., ...), 5, -6])
def test_indices_out_of_bounds_are_refused(index: Any) -> None:
    with pytest.raises(IndexError):
        index_rows(WHOLE.shape, index, lambda rows: torch.tensor(WHOLE[list(rows)]))


@pytest.mark.parametrize("index", [[0, 1], torch.tensor(1), True, "a", 1.0])
def test_what_is_no_index_is_refused(index: Any) -> None:
    with pytest.raises(InvalidTypeError, match="cannot be indexed"):
        index_rows(WHOLE.shape, index, lambda rows: torch.tensor(WHOLE[list(rows)]))
