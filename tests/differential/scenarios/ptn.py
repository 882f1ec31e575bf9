"""Partitioners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario

SHAPES = [6, 1], [7, 3], [10, 3], [100, 1], [1, 8]


def shards(
    lib: Library,
    name: str,
    arguments: Sequence[Any],
    sizes: Sequence[int | None],
    **options: Any,
) -> Any:
    """Return what a partitioner answers."""
    partitioner = getattr(lib.distribute.partitioners, name)(*arguments)
    return partitioner(lib.shape_with(sizes), lib.dtype("float32"), **options)


@scenario("PTN-2", "PTN-5", core=(224,))
def numbers_of_shards(lib: Library) -> Any:
    return [
        shards(lib, "FixedShardsPartitioner", [number], sizes)
        for number in (1, 2, 5, 200)
        for sizes in SHAPES
    ]


@scenario("PTN-3", "PTN-5", core=(224,))
def least_sizes(lib: Library) -> Any:
    return [
        shards(lib, "MinSizePartitioner", arguments, sizes)
        for arguments in ([4, 2], [4, 10], [7, 10], [13, 10], [16, 100], [100, 10], [])
        for sizes in SHAPES
    ]


@scenario("PTN-4", "PTN-5", core=(224,))
def greatest_sizes(lib: Library) -> Any:
    return [
        shards(lib, "MaxSizePartitioner", arguments, sizes)
        for arguments in ([4], [4, 2], [9], [24], [24, 3], [30], [1024])
        for sizes in SHAPES
    ]


@scenario("PTN-1")
def the_base(lib: Library) -> Any:
    return shards(lib, "Partitioner", [], [6, 1])


@scenario("PTN-3", "PTN-4")
def sizes_that_are_not_positive(lib: Library) -> Any:
    says = ("must be positive",)
    partitioners = lib.distribute.partitioners
    return [
        attempt(make, *arguments, says=says)
        for make in (partitioners.MinSizePartitioner, partitioners.MaxSizePartitioner)
        for arguments in ([0], [4, -1], [4, 2, 0])
    ]


@scenario("PTN-6")
def other_axes(lib: Library) -> Any:
    names = ("FixedShards", "MinSize", "MaxSize")
    return [
        [shards(lib, f"{name}Partitioner", [2], [6, 5], axis=axis) for axis in (0, 1, -1)]
        for name in names
    ] + [
        attempt(lambda name=name: shards(lib, f"{name}Partitioner", [2], [6], axis=1))
        for name in names
    ]


@scenario("PTN-7", says=("shape is not fully defined",))
def a_size_that_is_not_known(lib: Library) -> Any:
    return shards(lib, "MaxSizePartitioner", [4], [None, 5])
