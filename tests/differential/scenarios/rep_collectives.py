"""Values that replicas reduce and join among themselves."""

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
    replica_id,
)


def replica(lib: Library) -> Any:
    """Return the running replica."""
    return lib.distribute.get_replica_context()


@scenario("REP-7", "REP-8")
def the_only_replica_has_nothing_to_reduce(lib: Library) -> Any:
    def fn() -> Any:
        return [
            replica(lib).all_reduce("SUM", 2.0),
            replica(lib).all_gather(lib.tensor([1.0]), 3),
            replica(lib).all_gather(2.0, 0),
        ]

    return [each.run(fn) for each in (one_device(lib), lib.distribute.get_strategy())]


@scenario("REP-7", core=(76,))
def sums_and_means_of_nests(lib: Library) -> Any:
    def fn() -> Any:
        one = lib.tensor(1.0 + 2.0 * replica_id(lib))
        nest = {"a": one, "b": [one, (one * 2.0,)]}
        return [
            replica(lib).all_reduce("SUM", nest),
            replica(lib).all_reduce(lib.distribute.ReduceOp.MEAN, nest),
        ]

    strategies = [*both(lib), one_device(lib)]
    return [each.experimental_local_results(each.run(fn)) for each in strategies]


@scenario("REP-7", core=(77, 78))
def gradients_of_sums_and_means(lib: Library) -> Any:
    def fn(op: str) -> Any:
        def reduced(x: Any) -> Any:
            return replica(lib).all_reduce(op, x) * (1.0 + replica_id(lib))

        return lib.gradients(reduced, lib.tensor(2.0))

    return [
        each.experimental_local_results(each.run(fn, (op,)))
        for each in both(lib)
        for op in ("SUM", "MEAN")
    ]


@scenario("REP-7")
def an_operation_that_is_none(lib: Library) -> Any:
    says = ("is not a valid ReduceOp",)
    return [
        attempt(
            each.run,
            lambda: replica(lib).all_reduce("MAX", lib.tensor(1.0)),
            says=says,
        )
        for each in both(lib)
    ]


@scenario("REP-7", "RED-23")
def rows_stay_sparse(lib: Library) -> Any:
    def fn(op: str) -> Any:
        rows = lib.slices([[1.0 + replica_id(lib), 1.0]], [replica_id(lib)], 3)
        return replica(lib).all_reduce(op, rows)

    return [
        each.experimental_local_results(each.run(fn, (op,)))
        for each in both(lib)
        for op in ("SUM", "MEAN")
    ]


@scenario("REP-7", "VOR-11", core=(81,))
def variables_give_their_local_component(lib: Library) -> Any:
    strategy, names = mirrored(lib), lib.distribute
    with strategy.scope():
        variable = names.Variable(
            0.0,
            synchronization=names.VariableSynchronization.ON_READ,
            aggregation=names.VariableAggregation.SUM,
        )

    def fn() -> Any:
        variable.assign_add(3.0 * replica_id(lib))
        return replica(lib).all_reduce("SUM", variable)

    return strategy.experimental_local_results(strategy.run(fn))


@scenario("REP-7")
def the_default_replica_reduces_nothing(lib: Library) -> Any:
    two = lib.tensor(2.0)
    return [replica(lib).all_reduce(op, two) for op in ("SUM", "MEAN")]


@scenario("REP-9")
def a_single_replica_reduces_an_empty_nest(lib: Library) -> Any:
    return one_device(lib).run(lambda: replica(lib).all_reduce("SUM", {}))


def block(lib: Library, *sizes: int) -> Any:
    """Return a tensor of one size along each axis that tells replicas apart."""
    value: Any = float(replica_id(lib))
    for size in reversed(sizes):
        value = [value] * size
    return lib.tensor(value)


@scenario("REP-8", core=(87,))
def dense_tensors_are_joined_along_any_axis(lib: Library) -> Any:
    cases = [((3,), 0), ((2, 3), 0), ((2, 3), 1)]
    cases += [((1, 2, 3), axis) for axis in range(3)]

    def fn() -> Any:
        return [replica(lib).all_gather(block(lib, *s), axis) for s, axis in cases]

    strategies = [*both(lib), one_device(lib)]
    return [each.experimental_local_results(each.run(fn)) for each in strategies]


@scenario("REP-8", core=(87,))
def sizes_differ_along_the_axis(lib: Library) -> Any:
    def fn() -> Any:
        rows, columns = block(lib, replica_id(lib) + 1, 2), block(lib, 2, 3)
        return replica(lib).all_gather({"rows": [rows], "columns": columns}, 0)

    return [each.experimental_local_results(each.run(fn)) for each in both(lib)]


@scenario("REP-8", core=(87,))
def sizes_differ_along_the_second_axis(lib: Library) -> Any:
    def fn() -> Any:
        return replica(lib).all_gather(block(lib, 2, replica_id(lib) + 1), axis=1)

    return [each.experimental_local_results(each.run(fn)) for each in both(lib)]


@scenario("REP-8", core=(89,))
def gradients_of_joined_tensors(lib: Library) -> Any:
    def fn() -> Any:
        def product(x: Any) -> Any:
            weights = lib.tensor([[1.0, 2.0], [3.0, 4.0]]) * (1.0 + replica_id(lib))
            return lib.matmul(replica(lib).all_gather(x, axis=0), weights)

        return lib.gradients(product, lib.tensor([[1.0, 2.0]]))

    return [each.experimental_local_results(each.run(fn)) for each in both(lib)]


@scenario("REP-8", core=(89,))
def gradients_of_joined_nests(lib: Library) -> Any:
    def fn() -> Any:
        def product(x: Any, y: Any) -> Any:
            joined = replica(lib).all_gather([x, {"y": y}], axis=0)
            return lib.total(joined[0]) * lib.total(joined[1]["y"])

        return lib.gradients(product, lib.tensor([1.0]), lib.tensor([2.0]))

    return [each.experimental_local_results(each.run(fn)) for each in both(lib)]


@scenario("REP-8", core=(90,))
def rows_are_not_joined(lib: Library) -> Any:
    def fn() -> Any:
        return replica(lib).all_gather(lib.slices([[1.0]], [0], 3), axis=0)

    strategies = [mirrored(lib), central(lib), one_device(lib)]
    return [attempt(each.run, fn) for each in strategies]


@scenario("REP-8", core=(90,))
def sizes_differ_along_another_axis(lib: Library) -> Any:
    return mirrored(lib).run(
        lambda: replica(lib).all_gather(block(lib, 2, replica_id(lib) + 1), axis=0)
    )


@scenario("REP-8", core=(90,))
def ranks_differ(lib: Library) -> Any:
    return mirrored(lib).run(
        lambda: replica(lib).all_gather(block(lib, *[1] * (replica_id(lib) + 1)), 0)
    )


@scenario("REP-7", "REP-8")
def three_replicas(lib: Library) -> Any:
    def fn() -> Any:
        rows = block(lib, replica_id(lib) + 1)
        return [
            replica(lib).all_gather(rows, axis=0),
            replica(lib).all_reduce("SUM", lib.total(rows)),
        ]

    strategy = mirrored(lib, 3)
    return strategy.experimental_local_results(strategy.run(fn))
