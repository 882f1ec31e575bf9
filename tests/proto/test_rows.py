"""Rows of tensors, by their indices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stratagem_proto.rows import (
    WholeRows,
    are_ascending,
    as_elements,
    ascending_order,
    distinct,
    put,
    summed,
)
from tests.full import by_pairs


@pytest.mark.parametrize("count", [0, 1, 100, 1000, 40_000])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_distinct_indices_are_those_of_torch(count: int, dtype: torch.dtype) -> None:
    indices = torch.randint(0, 500, (count,), dtype=dtype)

    found, places = distinct(indices)

    expected, expected_places = torch.unique(indices, return_inverse=True)
    assert torch.equal(found, expected)
    assert torch.equal(places, expected_places)


@pytest.mark.parametrize("count", [100, 1000, 40_000])
def test_distinct_indices_may_be_written_as_fractions(count: int) -> None:
    indices = torch.randint(0, 500, (count,))

    found, places = distinct(indices.double())

    assert torch.equal(found, indices.unique().double())
    assert torch.equal(found[places], indices.double())


@pytest.mark.parametrize("least", [-5, 0, 1 << 40, 1 << 60])
def test_distinct_indices_may_be_of_any_size(least: int) -> None:
    indices = least + torch.randint(0, 500, (1000,))

    found, places = distinct(indices)

    assert torch.equal(found, indices.unique())
    assert torch.equal(found[places], indices)


def test_places_have_the_shape_of_the_indices() -> None:
    indices = torch.randint(0, 50, (3, 20, 5))

    found, places = distinct(indices)

    assert places.shape == indices.shape
    assert torch.equal(found[places], indices)


def test_indices_need_not_lie_in_order() -> None:
    indices = torch.randint(0, 50, (30, 20)).t()

    found, places = distinct(indices)

    assert torch.equal(found[places], indices)


@pytest.mark.parametrize("count", [0, 1, 200, 5000, 40_000])
@pytest.mark.parametrize("most", [1, 5, 1 << 40])
def test_the_order_is_that_of_torch(count: int, most: int) -> None:
    indices = torch.randint(0, most, (count,))

    assert torch.equal(ascending_order(indices), indices.argsort(stable=True))


@by_pairs(
    "count,row,dtype",
    [0, 1, 200, 5000, 40_000],
    [(), (1,), (5,), (16,), (33,), (300,), (3, 7), (0,)],
    [torch.float32, torch.float64, torch.bfloat16],
)
def test_what_there_is_for_an_index_is_added_in_its_order(
    count: int, row: tuple[int, ...], dtype: torch.dtype
) -> None:
    indices = torch.randint(0, 1 + count // 4, (count,))
    # In another order these come to other sums; 0.0 and -0.0 to 0.0.
    values = (torch.randn(count, *row) * 10 ** torch.randn(count, *row)).to(dtype)
    values[torch.rand(count) < 0.1] = -0.0

    found, sums = summed(indices, values)

    expected, places = torch.unique(indices, return_inverse=True)
    added = torch.zeros(len(expected), *row, dtype=dtype)
    added.index_add_(0, places, values)
    assert torch.equal(found, expected)
    assert sums.shape == added.shape
    assert torch.equal(sums.flatten().view(torch.uint8), added.flatten().view(torch.uint8))


def test_values_of_any_strides_are_added() -> None:
    indices, values = torch.randint(0, 50, (600,)), torch.randn(16, 600).t()

    _, sums = summed(indices, values)

    assert torch.equal(sums, summed(indices, values.contiguous())[1])


@by_pairs(
    "count,width,dtype",
    [0, 3, 700],
    [(), (1,), (3, 5), (0,)],
    [torch.float32, torch.bfloat16, torch.bool, torch.complex64],
)
def test_rows_that_are_put_are_there(
    count: int, width: tuple[int, ...], dtype: torch.dtype
) -> None:
    table = torch.zeros(1000, *width, dtype=dtype)
    rows = torch.randperm(1000)[:count]
    values = torch.randn(count, *width).to(dtype)

    put(table, rows, values)

    assert torch.equal(table[rows], values)
    others = torch.ones(1000, dtype=torch.bool)
    others[rows] = False
    assert not table[others].any()


@pytest.mark.parametrize("strided", ["into", "values"])
def test_rows_are_put_whatever_memory_is_like(strided: str) -> None:
    table, values = torch.zeros(1000, 8), torch.randn(500, 8)
    if strided == "into":
        table = torch.zeros(8, 1000).t()
    else:
        values = torch.randn(8, 500).t()
    rows = torch.randperm(1000)[:500]

    put(table, rows, values)

    assert torch.equal(table[rows], values)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], True),
        ([0, 1, 9], True),
        ([9], True),
        ([10], False),
        ([-1, 3], False),
        ([3, 3], False),
        ([4, 3], False),
        ([0, 12, 9], False),
    ],
)
def test_rows_are_looked_at_before_they_are_moved(rows: list[int], expected: bool) -> None:
    assert are_ascending(torch.tensor(rows, dtype=torch.int64), 10) == expected


@pytest.mark.parametrize("count", [0, 1, 700])
@pytest.mark.parametrize("width", [(), (1,), (3, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_whole_rows_are_taken_and_put_back(
    count: int, width: tuple[int, ...], dtype: torch.dtype
) -> None:
    table = torch.randn(1000, *width).to(dtype)
    before, rows = table.clone(), torch.randperm(1000)[:count]
    whole = WholeRows(table)

    taken = np.empty(count, whole.dtype)
    whole.take(rows.numpy(), into=taken)
    elements = as_elements(taken, dtype)
    assert torch.equal(elements, before[rows].flatten())
    elements.add_(1)
    whole.put(rows.numpy(), taken)

    before[rows] += 1
    assert torch.equal(table, before)
