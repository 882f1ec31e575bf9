"""Partitioners by number and by size."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stratagem

ROWS = torch.Size((6, 1))


@pytest.mark.spec("PTN-1")
def test_the_base_is_abstract() -> None:
    with pytest.raises(NotImplementedError, match="must be implemented in descendants"):
        stratagem.partitioners.Partitioner()(ROWS, torch.float32)


@pytest.mark.spec("PTN-2")
@pytest.mark.parametrize(("shards", "found"), [(2, 2), (6, 6), (9, 6)])
def test_a_fixed_number_of_shards_is_at_most_that_of_the_rows(shards: int, found: int) -> None:
    partitioner = stratagem.partitioners.FixedShardsPartitioner(shards)
    assert partitioner(ROWS, torch.float32) == [found, 1]


@pytest.mark.spec("PTN-3")
@pytest.mark.parametrize(
    ("arguments", "shape", "found"),
    [
        ((5, 10), (6, 1), 5),
        ((7, 10), (6, 1), 4),
        ((13, 10), (7, 3), 7),
        ((100, 10), (7, 3), 1),
        ((16, 100), (7, 3), 6),
        ((4, 10), (0, 4), 1),
    ],
)
def test_shards_have_a_least_size(
    arguments: tuple[int, int], shape: tuple[int, int], found: int
) -> None:
    partitioner = stratagem.partitioners.MinSizePartitioner(*arguments)
    assert partitioner(shape, torch.float32) == [found, 1]


@pytest.mark.spec("PTN-3")
def test_by_default_there_is_one_shard() -> None:
    partitioner = stratagem.partitioners.MinSizePartitioner()
    assert partitioner((10**6, 16), torch.float32) == [1, 1]


@pytest.mark.spec("PTN-4")
@pytest.mark.parametrize(
    ("arguments", "shape", "found"),
    [
        ((9,), (6, 1), 3),
        ((1,), (6, 3), 6),
        ((30,), (10, 3), 5),
        ((24, 3), (10, 3), 3),
        ((24,), (0, 3), 1),
    ],
)
def test_shards_have_a_greatest_size(
    arguments: tuple[int, ...], shape: tuple[int, int], found: int
) -> None:
    partitioner = stratagem.partitioners.MaxSizePartitioner(*arguments)
    assert partitioner(shape, torch.float32) == [found, 1]


@pytest.mark.spec("PTN-3")
@pytest.mark.parametrize("arguments", [(0,), (1, 0), (1, 1, 0)])
def test_a_least_size_is_positive(arguments: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        stratagem.partitioners.MinSizePartitioner(*arguments)


@pytest.mark.spec("PTN-4")
@pytest.mark.parametrize("arguments", [(0,), (1, 0), (1, 1, 0)])
def test_a_greatest_size_is_positive(arguments: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        stratagem.partitioners.MaxSizePartitioner(*arguments)


@pytest.mark.spec("PTN-5")
@pytest.mark.parametrize(
    ("name", "arguments", "shape", "found"),
    [
        ("FixedShardsPartitioner", (2,), (10, 3), [2, 1]),
        ("MinSizePartitioner", (4, 2), ROWS, [2, 1]),
        ("MinSizePartitioner", (4, 10), ROWS, [6, 1]),
        ("MaxSizePartitioner", (4,), ROWS, [6, 1]),
        ("MaxSizePartitioner", (4, 2), ROWS, [2, 1]),
        ("MaxSizePartitioner", (1024,), ROWS, [1, 1]),
    ],
)
def test_examples(name: str, arguments: Any, shape: Any, found: list[int]) -> None:
    partitioner = getattr(stratagem.partitioners, name)(*arguments)
    assert partitioner(shape, torch.float32) == found


@pytest.mark.spec("PTN-6")
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("FixedShardsPartitioner", IndexError),
        ("MinSizePartitioner", ValueError),
        ("MaxSizePartitioner", ValueError),
    ],
)
def test_an_axis_has_to_exist(name: str, error: type[Exception]) -> None:
    partitioner = getattr(stratagem.partitioners, name)(2)
    assert len(partitioner((4, 6), torch.float32, axis=1)) == 2
    with pytest.raises(error):
        partitioner((4, 6), torch.float32, axis=2)


@pytest.mark.spec("PTN-7")
@pytest.mark.parametrize("name", ["MinSizePartitioner", "MaxSizePartitioner"])
def test_sizes_need_every_dimension(name: str) -> None:
    partitioner = getattr(stratagem.partitioners, name)(2)
    with pytest.raises(ValueError, match="not fully defined"):
        partitioner((None, 6), torch.float32)
