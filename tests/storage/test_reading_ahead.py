"""What is read ahead comes in its order, and no further ahead than said."""

from __future__ import annotations

from itertools import islice
from threading import Barrier

import pytest

from stratagem_storage.reading_ahead import read_ahead


def test_values_come_in_the_order_of_their_items() -> None:
    assert list(read_ahead(lambda item: item * item, range(100))) == [n * n for n in range(100)]
    assert list(read_ahead(str, [])) == []


def test_two_items_are_read_at_once() -> None:
    together = Barrier(2)
    places = list(read_ahead(lambda _: together.wait(timeout=30.0), range(10)))
    assert sorted(places) == [0] * 5 + [1] * 5


def test_no_more_than_two_items_are_read_before_they_are_asked_for() -> None:
    asked: list[int] = []
    values = read_ahead(asked.append, range(100))
    assert len(list(islice(values, 10))) == 10
    values.close()
    assert len(asked) <= 12


def test_an_error_is_raised_in_its_turn() -> None:
    values = read_ahead(lambda item: 6 // item, [1, 2, 0, 3])
    assert list(islice(values, 2)) == [6, 3]
    with pytest.raises(ZeroDivisionError):
        next(values)
