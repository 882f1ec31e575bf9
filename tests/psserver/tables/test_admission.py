"""Counting keys until they may have a row."""

from __future__ import annotations

from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from stratagem_psserver.tables.retention import Admission


def vector(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


seen_keys = st.lists(st.lists(st.integers(-9, 9), unique=True), max_size=20)


@given(seen_keys, st.integers(2, 4))
def test_a_key_is_due_the_time_that_was_asked_for(sights: list[list[int]], needed: int) -> None:
    admission, counts = Admission(needed), Counter[int]()
    for keys in sights:
        expected = [counts[key] + 1 >= needed for key in keys]
        due = admission.is_due(vector(keys))
        assert due.tolist() == expected
        admission.mark_stored(vector(keys)[due])
        admission.count(vector(keys)[~due])
        for key, is_due in zip(keys, expected, strict=True):
            counts[key] = 0 if is_due else counts[key] + 1
        assert admission.waiting == sum(count > 0 for count in counts.values())


def test_every_key_is_due_at_once_without_a_count() -> None:
    admission = Admission(0)
    assert admission.is_due(vector([1, 2])).all()
    assert admission.nbytes == 0


def test_keys_that_got_their_row_are_dropped_after_a_while() -> None:
    admission = Admission(2)
    for start in range(0, 50_000, 1000):
        keys = torch.arange(start, start + 1000)
        admission.count(keys)
        admission.mark_stored(keys[:999])
    assert admission.waiting == 50
    assert len(admission._index) < 4000
    assert admission.is_due(vector([999, 49_999])).all()


def test_counts_begin_anew_where_they_would_take_too_many_bytes() -> None:
    admission = Admission(2, max_bytes=10_000)
    for start in range(0, 5000, 100):
        admission.count(torch.arange(start, start + 100))
        assert admission.nbytes <= 10_000
        assert admission.is_due(torch.arange(start, start + 100)).all()
    assert not admission.is_due(torch.arange(100)).any()
    admission.count(torch.arange(100_000))
    assert admission.nbytes <= 10_000
    assert admission.is_due(vector([0])).all()
