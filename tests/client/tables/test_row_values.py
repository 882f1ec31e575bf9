"""Gradients of rows, as tables send them."""

from __future__ import annotations

import pytest
import torch

from stratagem._parameter_server.tables.lookup import added_up, as_sparse


@pytest.mark.parametrize("count", [0, 7, 4096])
def test_rows_are_added_up_in_their_order(count: int) -> None:
    rows, values = torch.randint(0, 50, (count,)), torch.randn(count, 16)
    gradient = as_sparse(rows, values, torch.Size((50, 16)))

    sums, distinct = added_up(gradient)

    dense = torch.zeros(50, 16).index_add_(0, rows, values)
    assert torch.equal(distinct, rows.unique())
    assert torch.equal(sums, dense[distinct])


def test_what_is_added_up_already_is_left_as_it_is() -> None:
    gradient = torch.eye(3).to_sparse(1).coalesce()
    sums, _ = added_up(gradient)
    assert sums.data_ptr() == gradient.values().data_ptr()
    assert torch.equal(sums, torch.eye(3))
