"""The index of a table against a dictionary."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stratagem_proto.key_index import KeyIndex, PositionArray

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1

keys_of_any_size = st.integers(LOWEST, HIGHEST)
small_keys = st.integers(-40, 40)
batches = st.lists(st.lists(keys_of_any_size | small_keys, max_size=60), max_size=8)


def vector(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def add(index: KeyIndex | PositionArray, known: dict[int, int], keys: list[int]) -> None:
    """Gives the keys that are new the next positions, in both."""
    new = [key for key in dict.fromkeys(keys) if key not in known]
    positions = list(range(len(known), len(known) + len(new)))
    index.insert(vector(new), vector(positions))
    known.update(zip(new, positions, strict=True))


@given(batches, st.lists(keys_of_any_size | small_keys, max_size=60))
def test_it_finds_what_a_dictionary_finds(added: list[list[int]], asked: list[int]) -> None:
    index, known = KeyIndex(), dict[int, int]()
    for keys in added:
        add(index, known, keys)
        asked = asked + keys
        expected = [known.get(key, -1) for key in asked]
        assert index.find(vector(asked)).tolist() == expected
    assert len(index) == len(known)
    held, positions = index.items()
    assert dict(zip(held.tolist(), positions.tolist(), strict=True)) == known


rows = st.integers(0, 70)


@given(st.lists(st.lists(rows, max_size=30), max_size=8), st.lists(rows, max_size=30))
def test_an_array_of_positions_finds_what_an_index_finds(
    added: list[list[int]], asked: list[int]
) -> None:
    array, index, known = PositionArray(71), KeyIndex(), dict[int, int]()
    for keys in added:
        before = dict(known)
        add(array, known, keys)
        add(index, before, keys)
        asked = asked + keys
        assert array.find(vector(asked)).tolist() == index.find(vector(asked)).tolist()
    assert len(array) == len(index)
    held, positions = array.items()
    assert dict(zip(held.tolist(), positions.tolist(), strict=True)) == known
    assert array.nbytes == PositionArray.nbytes_for(71) == 4 * 71


@pytest.mark.parametrize("row", [-1, 71])
def test_an_array_of_positions_has_no_rows_beyond_its_vocabulary(row: int) -> None:
    array = PositionArray(71)
    with pytest.raises(IndexError):
        array.find(vector([3, row]))
    with pytest.raises(IndexError):
        array.insert(vector([row]), vector([0]))


@pytest.mark.parametrize("key", [0, -1, LOWEST, HIGHEST])
def test_keys_that_empty_places_might_hold_are_keys_like_others(key: int) -> None:
    index = KeyIndex()
    assert index.find(vector([key])).tolist() == [-1]
    index.insert(vector([key]), vector([5]))
    assert index.find(vector([key])).tolist() == [5]


@pytest.mark.parametrize("stride", [1, 8, 4096, 1 << 31, 1 << 32])
def test_evenly_spaced_keys_spread_over_the_buckets(stride: int) -> None:
    """A wrong bucket would be passed on to the next, and the search would be long."""
    keys = torch.arange(100_000) * stride
    index = KeyIndex()
    index.insert(keys, torch.arange(100_000))
    assert torch.equal(index.find(keys.flip(0)), torch.arange(100_000).flip(0))
    full = (index._positions >= 0).all(1).float().mean()
    assert full < 0.4


def test_its_size_is_known_from_the_number_of_keys() -> None:
    index = KeyIndex()
    for count in (1, 5, 6, 400, 5000):
        index.insert(torch.arange(len(index), count), torch.arange(len(index), count))
        assert index.nbytes == KeyIndex.nbytes_for(count)
    assert index.nbytes < 40 * 5000
