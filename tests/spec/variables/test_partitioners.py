"""Partitioners by number and by size."""

from __future__ import annotations

import pytest
import torch

import stratagem

ROWS = torch.Size((6, 1))


@pytest.mark.spec("PTN-1")
def test_the_base_is_abstract() -> None:
    with pytest.raises(NotImplementedError, match="must be implemented in descendants"):
        stratagem.partitioners.Partitioner()(ROWS, torch.float32)


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


@pytest.mark.spec("PTN-7")
@pytest.mark.parametrize("name", ["MinSizePartitioner", "MaxSizePartitioner"])
def test_sizes_need_every_dimension(name: str) -> None:
    partitioner = getattr(stratagem.partitioners, name)(2)
    with pytest.raises(ValueError, match="not fully defined"):
        partitioner((None, 6), torch.float32)
