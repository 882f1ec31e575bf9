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


class Indexed:
    """An index, and the keys at their positions, which are those of a dictionary."""

    def __init__(self, index: KeyIndex | PositionArray) -> None:
        self.index, self.known = index, dict[int, int]()

    @property
    def held(self) -> torch.Tensor:
        return vector(list(self.known))

    def add(self, keys: list[int]) -> None:
        """Gives the keys that are new the next positions."""
        new = [key for key in dict.fromkeys(keys) if key not in self.known]
        positions = list(range(len(self.known), len(self.known) + len(new)))
        self.index.reserve(len(new), self.held)
        self.index.insert(vector(new), vector(positions))
        self.known.update(zip(new, positions, strict=True))

    def find(self, keys: list[int]) -> list[int]:
        return self.index.find(vector(keys), self.held).tolist()


@given(batches, st.lists(keys_of_any_size | small_keys, max_size=60))
def test_it_finds_what_a_dictionary_finds(added: list[list[int]], asked: list[int]) -> None:
    index = KeyIndex()
    indexed = Indexed(index)
    for keys in added:
        indexed.add(keys)
        asked = asked + keys
        assert indexed.find(asked) == [indexed.known.get(key, -1) for key in asked]
    assert len(index) == len(indexed.known)


@given(st.lists(st.lists(st.integers(0, 70), max_size=30), max_size=8))
def test_an_array_of_positions_finds_what_a_dictionary_finds(added: list[list[int]]) -> None:
    array = PositionArray(71)
    indexed = Indexed(array)
    for keys in added:
        indexed.add(keys)
        assert indexed.find(list(range(71))) == [indexed.known.get(key, -1) for key in range(71)]
    assert array.nbytes == PositionArray.nbytes_for(71) == 4 * 71


@given(st.lists(st.lists(st.integers(0, 30), unique=True, max_size=20), max_size=8))
def test_a_key_that_stands_elsewhere_or_no_more_is_not_found_where_it_stood(
    versions: list[list[int]],
) -> None:
    index = KeyIndex(1000)
    for keys in versions:
        index.insert(vector(keys), torch.arange(len(keys)))
        known = {key: position for position, key in enumerate(keys)}
        found = index.find(torch.arange(31), vector(keys)).tolist()
        assert found == [known.get(key, -1) for key in range(31)]


@pytest.mark.parametrize("row", [-1, 71])
def test_an_array_of_positions_has_no_rows_beyond_its_vocabulary(row: int) -> None:
    array = PositionArray(71)
    with pytest.raises(IndexError):
        array.find(vector([3, row]), vector([]))
    with pytest.raises(IndexError):
        array.insert(vector([row]), vector([0]))


@pytest.mark.parametrize("key", [0, -1, LOWEST, HIGHEST])
def test_keys_that_empty_places_might_hold_are_keys_like_others(key: int) -> None:
    indexed = Indexed(KeyIndex())
    indexed.add([5])
    assert indexed.find([key]) == [-1]
    indexed.add([key])
    assert indexed.find([key, 5]) == [1, 0]


def test_keys_of_one_mark_are_told_apart() -> None:
    """Each place of a bucket with the mark of a key is looked at."""
    many = torch.randint(LOWEST, HIGHEST, (200_000,)).unique()
    _, marks = KeyIndex()._places(many.numpy())
    keys, others = many[torch.from_numpy(marks == 7)].chunk(2)
    index = KeyIndex.from_keys(keys)
    assert len(keys) > 200
    assert index._marks.unique().tolist() == [0, 7]
    assert torch.equal(index.find(keys, keys), torch.arange(len(keys)))
    assert (index.find(others, keys) < 0).all()


@pytest.mark.parametrize("stride", [1, 8, 4096, 1 << 31, 1 << 32])
def test_evenly_spaced_keys_spread_over_the_buckets_and_marks(stride: int) -> None:
    """A wrong bucket would be passed on to the next, and the search would be long."""
    keys = torch.arange(100_000) * stride
    index = KeyIndex.from_keys(keys)
    assert torch.equal(index.find(keys.flip(0), keys), torch.arange(100_000).flip(0))
    full = (index._marks != 0).all(1).float().mean()
    assert full < 0.4
    assert index._marks.view(-1).bincount()[1:].max() < 3 * 100_000 / 255


def test_its_size_is_known_from_the_number_of_keys() -> None:
    index, keys = KeyIndex(), torch.arange(5000)
    for count in (1, 5, 6, 400, 5000):
        index.reserve(count - len(index), keys)
        index.insert(keys[len(index) : count], keys[len(index) : count])
        assert index.nbytes == KeyIndex.nbytes_for(count)
    assert index.nbytes < 12 * 5000
