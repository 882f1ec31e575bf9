"""Tensors through which parameters may be written."""

from __future__ import annotations

import gc
from weakref import ref

import torch

from stratagem._hosting.hosted_parameter import DataViews


def lent_to_nobody(lent: DataViews, write: bool = False) -> ref[torch.Tensor]:
    data = torch.zeros(2)
    lent.add(data)
    if write:
        data.add_(1)
    return ref(data)


def test_what_nobody_has_is_let_go_of_however_often_it_is_asked_for() -> None:
    lent = DataViews()
    given = [lent_to_nobody(lent) for _ in range(1000)]
    gc.collect()
    assert sum(one() is not None for one in given) <= 64
    assert not lent.were_written()
    assert not any(one() is not None for one in given)


def test_a_write_is_remembered_until_it_is_accepted() -> None:
    lent = DataViews()
    lent_to_nobody(lent, write=True)
    for _ in range(1000):
        lent_to_nobody(lent)
    assert lent.were_written()
    lent.accept()
    assert not lent.were_written()


def test_who_keeps_the_data_may_write_through_them_later() -> None:
    lent, kept = DataViews(), torch.zeros(2)
    lent.add(kept)
    lent.accept()
    assert not lent.were_written()
    kept.add_(1)
    assert lent.were_written()
