"""Which rows of a variable its parts have."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stratagem_proto.division import PartRows, are_all, is_part, sizes_of_shards
from stratagem_proto.v1.tensor_pb2 import DATA_TYPE_FLOAT32, TensorSpec
from stratagem_proto.v1.variable_pb2 import Interleaved, Partition, VariableSpec

parts = st.builds(PartRows, st.integers(0, 30), st.integers(0, 20), st.integers(1, 9))


@given(rows=st.integers(0, 60), shards=st.integers(1, 9), is_interleaved=st.booleans())
def test_shards_have_each_row_once(rows: int, shards: int, is_interleaved: bool) -> None:
    found = [PartRows.of_shard(rows, number, shards, is_interleaved) for number in range(shards)]
    assert sorted(row for one in found for row in one.numbers) == list(range(rows))
    assert tuple(one.count for one in found) == sizes_of_shards(rows, shards)
    assert are_all(found, rows)
    assert not are_all(found, rows + shards)
    if shards > 1:
        assert not are_all(found[1:], rows) or not found[0].count


@given(part=parts)
def test_rows_of_the_whole_are_rows_of_the_part(part: PartRows) -> None:
    local = torch.arange(part.count)
    whole = torch.tensor(part.numbers, dtype=torch.int64)
    assert torch.equal(part.whole(local), whole)
    assert torch.equal(part.local(whole), local)
    every = torch.arange(-20, 250)
    assert torch.equal(every[part.has(every)], whole)


@given(one=parts, other=parts)
def test_rows_of_two_parts_are_found_by_their_numbers_in_each(
    one: PartRows, other: PartRows
) -> None:
    common = sorted(set(one.numbers) & set(other.numbers))
    mine, theirs = one.shared(other)
    assert [one.numbers[number] for number in mine] == common
    assert [other.numbers[number] for number in theirs] == common


@given(rows=st.integers(1, 60), shards=st.integers(1, 9), is_interleaved=st.booleans())
def test_a_part_is_described_and_found_again(rows: int, shards: int, is_interleaved: bool) -> None:
    for number in range(shards):
        part = PartRows.of_shard(rows, number, shards, is_interleaved)
        spec = VariableSpec(
            tensor=TensorSpec(dtype=DATA_TYPE_FLOAT32, shape=(part.count, 3)),
            partition=part.partition((rows, 3)),
        )
        assert is_part(spec)
        assert PartRows.from_spec(spec) == part


@pytest.mark.parametrize(
    "partition",
    [
        {"interleaved": Interleaved(part=2, parts=2)},
        {"interleaved": Interleaved(part=0, parts=0)},
        {"interleaved": Interleaved()},
        {"interleaved": Interleaved(part=0, parts=3)},
        {"interleaved": Interleaved(part=1, parts=2), "full_shape": (6, 4)},
        {"interleaved": Interleaved(part=1, parts=2), "full_shape": (6,)},
        {"interleaved": Interleaved(part=1, parts=2), "offset": (3, 0)},
        {"interleaved": Interleaved(part=1, parts=2), "full_shape": (2**62, 3)},
        {"offset": (4, 0)},
        {"offset": (-1, 0)},
        {},
    ],
    ids=str,
)
def test_what_cannot_be_a_part_is_none(partition: dict[str, object]) -> None:
    described = Partition(**{"full_shape": (6, 3), **partition})  # type: ignore[arg-type]
    shape = TensorSpec(dtype=DATA_TYPE_FLOAT32, shape=(3, 3))
    assert not is_part(VariableSpec(tensor=shape, partition=described))


def test_parts_with_very_many_steps_are_compared_at_once() -> None:
    one, other = PartRows(1, 2**31, 2**31 - 1), PartRows(2, 2**31, 2**31 - 19)
    mine, theirs = one.shared(other)
    assert len(mine) == len(theirs) == 1
    assert one.numbers[mine[0]] == other.numbers[theirs[0]]
