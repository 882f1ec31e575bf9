"""Strategies' public methods and properties."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import central, mirrored, one_device


def strategies(lib: Library) -> list[Any]:
    """Return one strategy of each kind."""
    default = lib.distribute.get_strategy()
    return [default, one_device(lib), mirrored(lib), mirrored(lib, 3), central(lib)]


@scenario("STR-3", core=(25,))
def replicas_in_sync(lib: Library) -> Any:
    return [each.num_replicas_in_sync for each in strategies(lib)]


@scenario("STR-4")
def strategies_of_one_process_have_no_resolver(lib: Library) -> Any:
    return [each.cluster_resolver for each in strategies(lib)]


@scenario("STR-2")
def extended_belongs_to_the_strategy(lib: Library) -> Any:
    return [each.extended is each.extended for each in strategies(lib)]


@scenario("STR-10")
def a_scope_gives_its_strategy(lib: Library) -> Any:
    given = []
    for strategy in strategies(lib):
        with strategy.scope() as current:
            given.append(current is strategy)
    return given


@scenario("STR-20")
def positional_arguments_are_a_list_or_tuple(lib: Library) -> Any:
    says = ("positional args must be a list or tuple",)
    runs = [each.run for each in strategies(lib)[1:]]
    return [attempt(run, lambda x: x, 3, says=says) for run in runs]


@scenario("STR-20")
def run_calls_the_function_with_arguments(lib: Library) -> Any:
    def fn(x: Any, factor: Any = 1) -> Any:
        return x * factor

    two = lib.tensor(2.0)
    return [
        [each.run(fn, (two,)), each.run(fn, [two], {"factor": lib.tensor(3.0)})]
        for each in strategies(lib)
    ]


@scenario("STR-20", core=(28,))
def nests_are_opened_for_replicas_and_put_together(lib: Library) -> Any:
    strategy = mirrored(lib)
    x = strategy.experimental_distribute_values_from_function(
        lambda context: lib.tensor(context.replica_id_in_sync_group + 1.0)
    )

    def fn(pair: Any) -> Any:
        first, second = pair
        return {"sum": first + second, "both": [first, second * 2]}

    return strategy.run(fn, ((x, lib.tensor(1.0)),))


@scenario("STR-22")
def one_element_of_an_iterator_is_run(lib: Library) -> Any:
    strategy = lib.v1.OneDeviceStrategy("CPU:0")
    iterator = strategy.make_dataset_iterator(lib.range(4).batch(2))
    return [
        strategy.experimental_run(lambda x: x * 2, iterator),
        strategy.experimental_run(lambda x: x * 2, iterator),
        strategy.experimental_run(lambda: lib.tensor(1.0)),
    ]


@scenario("STR-8", "CTX-A12", says=('Need to be inside "with strategy.scope()"',))
def colocation_needs_the_scope(lib: Library) -> Any:
    strategy = mirrored(lib)
    with strategy.scope():
        variable = lib.distribute.Variable(1.0)
    with strategy.extended.colocate_vars_with(variable):
        return None
