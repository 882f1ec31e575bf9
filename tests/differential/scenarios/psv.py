"""Where the variables of servers live."""

from __future__ import annotations

from typing import Any

from tests.differential.library import Library
from tests.differential.scenario import scenario


def places(lib: Library, variables: list[Any]) -> list[str]:
    """Return the devices of variables."""
    return [lib.device_of(variable) for variable in variables]


def is_on_a_server(lib: Library, variable: Any) -> bool:
    return "/job:ps/" in lib.device_of(variable)


@scenario("PSV-1", "PSV-4", core=(207,))
def servers_take_turns(lib: Library) -> Any:
    with lib.served(3) as strategy:
        outside = lib.distribute.Variable(0.0)
        with strategy.scope():
            inside = [lib.distribute.Variable(0.0) for _ in range(4)]
        after = lib.distribute.Variable(0.0)
        return [
            [is_on_a_server(lib, each) for each in (outside, after)],
            places(lib, inside),
        ]


@scenario("PSV-2", core=(208,))
def devices_do_not_matter(lib: Library) -> Any:
    with lib.served(3) as strategy:
        with lib.device("/job:ps/task:2"), strategy.scope():
            around = [lib.distribute.Variable(0.0) for _ in range(2)]
        with strategy.scope(), lib.device("/job:ps/task:0"):
            inside = [lib.distribute.Variable(0.0) for _ in range(2)]
        return places(lib, around + inside)


def on_the_last(lib: Library) -> Any:
    """Return a creator that places variables on the last of three servers."""

    def creator(next_creator: Any, **kwargs: Any) -> Any:
        with lib.device("/job:ps/replica:0/task:2/device:CPU:0"):
            return next_creator(**kwargs)

    return creator


@scenario("PSV-3", core=(209,))
def a_creator_in_the_scope_loses(lib: Library) -> Any:
    with lib.served(3) as strategy:
        with strategy.scope(), lib.creator_scope(on_the_last(lib)):
            made = [lib.distribute.Variable(0.0) for _ in range(2)]
        return places(lib, made)


@scenario("PSV-3", core=(209,))
def a_creator_around_the_scope_wins(lib: Library) -> Any:
    with lib.served(3) as strategy:
        with lib.creator_scope(on_the_last(lib)), strategy.scope():
            made = [lib.distribute.Variable(0.0) for _ in range(2)]
        with strategy.scope():
            made.append(lib.distribute.Variable(0.0))
        return places(lib, made)


@scenario("PSV-8", core=(216,))
def a_variable_beside_another(lib: Library) -> Any:
    partitioner = lib.distribute.partitioners.FixedShardsPartitioner(2)
    with lib.served(3, partitioner) as strategy, strategy.scope():
        table = lib.distribute.Variable(lib.tensor([1.0, 2.0]))
        with strategy.extended.colocate_vars_with(table.variables[1]):
            beside = lib.distribute.Variable(lib.tensor([3.0, 4.0]))
        last = lib.distribute.Variable(5.0)
        return [
            beside.numpy().tolist(),
            places(lib, [*table.variables, beside, last]),
        ]


@scenario("PSV-7", "PSV-10")
def aggregation_of_one_replica(lib: Library) -> Any:
    with lib.served(2) as strategy:
        with strategy.scope():
            total = lib.distribute.Variable(1.0, aggregation=lib.distribute.VariableAggregation.SUM)
        strategy.run(lambda: total.assign_add(2.0))
        return total.numpy().tolist()
