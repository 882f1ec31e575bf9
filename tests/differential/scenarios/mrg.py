"""Calling a function once for all replicas."""

from __future__ import annotations

from typing import Any

from tests.differential.contexts import state, strategies
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import central, mirrored, per_replica, replica_id


def merged(lib: Library, fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what a merge call gives in this replica."""
    replica = lib.distribute.get_replica_context()
    return replica.merge_call(fn, args=args, kwargs=kwargs)


@scenario("MRG-1")
def a_merge_function_gets_the_strategy_and_merged_arguments(lib: Library) -> Any:
    answers: list[Any] = []
    for strategy in strategies(lib):

        def merge(given: Any, x: Any, *, k: Any, strategy: Any = strategy) -> None:
            answers.append([given is strategy, state(lib), x, k])

        def fn(merge: Any = merge) -> None:
            merged(lib, merge, lib.tensor(1.0 + replica_id(lib)), k="same")

        strategy.run(fn)
    return answers


@scenario("MRG-1")
def the_merge_function_of_the_first_replica_is_called(lib: Library) -> Any:
    called: list[int] = []

    def fn() -> None:
        number = replica_id(lib)
        merged(lib, lambda strategy: called.append(number))

    mirrored(lib, 3).run(fn)
    return called


@scenario("MRG-2", core=(35,))
def every_replica_goes_on_with_the_result(lib: Library) -> Any:
    def fn() -> Any:
        return merged(lib, lambda strategy: lib.tensor(11.0)) + 1.0

    return [strategy.experimental_local_results(strategy.run(fn)) for strategy in strategies(lib)]


@scenario("MRG-2")
def each_replica_gets_its_component(lib: Library) -> Any:
    answers = []
    for strategy in strategies(lib):
        with strategy.scope():
            variable = lib.distribute.Variable(1.0)
        parts = [lib.tensor(1.0), lib.tensor(2.0)]
        values = per_replica(lib, strategy, parts)
        result = {"a": [values], "b": "all", "v": variable}
        seen: list[Any] = []

        def fn(result: Any = result, seen: Any = seen) -> None:
            mine = merged(lib, lambda strategy: result)
            seen.append([mine["a"], mine["b"], mine["v"] is result["v"]])

        strategy.run(fn)
        answers.append(seen)
    return answers


@scenario("MRG-3", says=("different number of", "merge_call"))
def one_replica_merges_more(lib: Library) -> Any:
    def fn() -> None:
        if replica_id(lib) == 1:
            merged(lib, lambda strategy: None)

    return mirrored(lib).run(fn)


@scenario("MRG-3", says=("different number of", "merge_call"))
def one_replica_assigns_more(lib: Library) -> Any:
    strategy = central(lib)
    aggregation = lib.distribute.VariableAggregation.SUM
    with strategy.scope():
        variable = lib.distribute.Variable(1.0, aggregation=aggregation)

    def fn() -> None:
        if replica_id(lib) == 0:
            variable.assign(2.0)

    return strategy.run(fn)


@scenario("MRG-6")
def replicas_run_within_a_merge_function(lib: Library) -> Any:
    def fn() -> Any:
        again = merged(lib, lambda s: s.run(lambda: lib.tensor(1.0 + replica_id(lib))))
        return again * 10.0

    return [strategy.run(fn) for strategy in strategies(lib)]


@scenario("MRG-6")
def merge_calls_within_replicas_within_merge_calls(lib: Library) -> Any:
    strategy = mirrored(lib)

    def inner() -> Any:
        number = lib.tensor(1.0 + replica_id(lib))
        return merged(lib, lambda s, x: s.reduce("SUM", x, axis=None), number)

    result = strategy.run(lambda: merged(lib, lambda s: s.run(inner)))
    return strategy.experimental_local_results(result)
