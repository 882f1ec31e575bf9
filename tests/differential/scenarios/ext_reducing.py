"""Reducing to, and copying to, devices of one's choice."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import (
    all_kinds,
    both,
    mirrored,
    one_device,
    replica_id,
)


def variable_of(lib: Library, strategy: Any) -> Any:
    """Return a variable of a strategy."""
    with strategy.scope():
        return lib.distribute.Variable(1.0)


def numbers(lib: Library, strategy: Any) -> Any:
    """Return 1.0 of the first replica, 3.0 of the second one."""
    return strategy.run(lambda: lib.tensor(1.0 + 2.0 * replica_id(lib)))


@scenario("EXT-1", "RED-15")
def the_mean_of_what_is_the_same_stays(lib: Library) -> Any:
    tensor = lib.tensor(1.0)
    return [
        attempt(strategy.extended.reduce_to, "MEAN", tensor, where) is tensor
        for strategy in all_kinds(lib)
        for where in ("/device:CPU:1", variable_of(lib, strategy), None)
    ]


@scenario("EXT-3")
def a_variable_is_copied_by_its_value(lib: Library) -> Any:
    return [
        attempt(strategy.extended.broadcast_to, variable_of(lib, strategy), where)
        for strategy in all_kinds(lib)[:3]
        for where in ("/device:CPU:1", variable_of(lib, strategy))
    ]


@scenario("EXT-1")
def destinations(lib: Library) -> Any:
    results = []
    for strategy in both(lib):
        value = numbers(lib, strategy)
        for where in ("CPU:0", value, variable_of(lib, strategy)):
            results.append(strategy.extended.reduce_to("SUM", value, where))
    return results


@scenario("EXT-1")
def several_destinations(lib: Library) -> Any:
    strategy = mirrored(lib)
    value, reduce_to = numbers(lib, strategy), strategy.extended.reduce_to
    return [attempt(reduce_to, "SUM", value, where) for where in (["CPU:0"], ("CPU:0",))]


@scenario("EXT-1")
def an_aggregation_names_a_reduction(lib: Library) -> Any:
    strategy = mirrored(lib)
    aggregation = lib.distribute.VariableAggregation.SUM
    return strategy.extended.reduce_to(aggregation, numbers(lib, strategy), "CPU:0")


@scenario("EXT-1", "RED-15", "RED-16")
def plain_values(lib: Library) -> Any:
    says = ("A non-DistributedValues value",)
    return [
        attempt(each.extended.reduce_to, op, lib.tensor(4.0), "CPU:0", says=says)
        for each in (*both(lib), one_device(lib))
        for op in ("SUM", "MEAN")
    ]


@scenario("EXT-1", "RED-21")
def mirrored_values(lib: Library) -> Any:
    strategy = mirrored(lib)
    value = lib.distribute.Mirrored((lib.tensor(3.0), lib.tensor(3.0)))
    reduce_to = strategy.extended.reduce_to
    return [attempt(reduce_to, op, value, "CPU:0") for op in ("MEAN", "SUM")]


@scenario("EXT-2")
def a_batch_of_dense_values_and_rows(lib: Library) -> Any:
    results = []
    for strategy in both(lib):
        dense = numbers(lib, strategy)
        rows = strategy.run(lambda: lib.slices([[2.0]], [replica_id(lib)], 3))
        pairs = [(dense, dense), (rows, rows), (dense, "CPU:0")]
        results.append(strategy.extended.batch_reduce_to("MEAN", pairs))
    return results


@scenario("EXT-3")
def a_tensor_is_copied(lib: Library) -> Any:
    results = []
    for strategy in (*both(lib), one_device(lib)):
        broadcast_to = strategy.extended.broadcast_to
        places = "CPU:0", variable_of(lib, strategy)
        results += [broadcast_to(lib.tensor(2.0), place) for place in places]
        results.append(broadcast_to(3, "CPU:0"))
    return results


@scenario("EXT-3")
def a_tensor_is_not_copied(lib: Library) -> Any:
    broadcast_to = mirrored(lib).extended.broadcast_to
    by_default = lib.distribute.get_strategy().extended.broadcast_to
    return [
        attempt(broadcast_to, lib.tensor(2.0), None),
        attempt(broadcast_to, lib.tensor(2.0), ["CPU:0"]),
        attempt(by_default, lib.tensor(2.0), "CPU:0"),
    ]
