"""Concatenation over replicas, in cross-replica context."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import (
    both,
    central,
    mirrored,
    one_device,
    per_replica,
)

CUBE = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]


def gathered(lib: Library, strategy: Any, parts: list[Any], axis: int) -> Any:
    """Return what `gather` makes of one list of numbers for each replica."""
    tensors = [lib.tensor(part) for part in parts]
    return strategy.gather(per_replica(lib, strategy, tensors), axis)


@scenario("GAT-1", core=(83,))
def components_are_joined_in_order(lib: Library) -> Any:
    return [
        gathered(lib, strategy, [value, value], axis)
        for strategy in both(lib)
        for value, rank in ((CUBE[0][0], 1), (CUBE[0], 2), (CUBE, 3))
        for axis in range(rank)
    ]


@scenario("GAT-2", core=(84,))
def sizes_may_differ_along_the_axis(lib: Library) -> Any:
    rows = [[[1.0], [2.0]], [[3.0]]]
    columns = [[[1.0]], [[2.0, 3.0]]]
    parts = [(rows, 0), (columns, 1)]
    return [gathered(lib, each, *part) for each in both(lib) for part in parts]


@scenario("GAT-3", core=(85,))
def another_size_differs(lib: Library) -> Any:
    return attempt(gathered, lib, mirrored(lib), [[[1.0]], [[2.0, 3.0]]], 0)


@scenario("GAT-3", core=(85,))
def ranks_differ(lib: Library) -> Any:
    return attempt(gathered, lib, mirrored(lib), [[1.0], [[2.0]]], 0)


@scenario("GAT-3")
def what_differs_under_central_storage(lib: Library) -> Any:
    parts = [[[1.0]], [[2.0, 3.0]]], [[1.0], [[2.0]]]
    return [attempt(gathered, lib, central(lib), part, 0) for part in parts]


@scenario("GAT-4")
def scalars(lib: Library) -> Any:
    return gathered(lib, mirrored(lib), [1.0, 2.0], 0)


@scenario("GAT-5")
def a_negative_axis_under_central_storage(lib: Library) -> Any:
    return gathered(lib, central(lib), [[[1.0]], [[2.0]]], -1)


@scenario("GAT-5")
def a_negative_axis(lib: Library) -> Any:
    return gathered(lib, mirrored(lib), [[[1.0]], [[2.0]]], -1)


@scenario("GAT-6", core=(86,))
def rows(lib: Library) -> Any:
    says = ("gather does not support IndexedSlices",)
    plain = lib.slices([[1.0, 2.0]], [2], 5)
    return [attempt(each.gather, plain, 0, says=says) for each in both(lib)]


@scenario("GAT-6")
def rows_of_replicas_become_dense(lib: Library) -> Any:
    strategy = mirrored(lib)
    part = lib.slices([[1.0]], [1], 2)
    return strategy.gather(per_replica(lib, strategy, [part, part]), 0)


@scenario("GAT-7")
def a_plain_tensor(lib: Library) -> Any:
    strategies = [*both(lib), one_device(lib), lib.distribute.get_strategy()]
    return [each.gather(lib.tensor([1.0, 2.0]), 0) for each in strategies]


@scenario("GAT-8")
def in_a_replica(lib: Library) -> Any:
    return [
        attempt(each.run, lambda each=each: each.gather(lib.tensor([1.0]), 0)) for each in both(lib)
    ]
