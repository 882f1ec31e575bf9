"""What of a distributed value belongs to this process."""

from __future__ import annotations

from typing import Any

from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import (
    both,
    mirrored,
    one_device,
    per_replica,
    replica_id,
)


def single(lib: Library) -> list[Any]:
    """Return strategies with one replica."""
    return [one_device(lib), lib.distribute.get_strategy()]


@scenario("LOC-3", core=(59,))
def those_of_what_replicas_return(lib: Library) -> Any:
    makers = [
        lambda number: {"a": number, "b": number + 1},
        lambda number: [number, number + 1],
        lambda number: (number, number + 1, number + 2),
        lambda number: {"a": [number, (number, {"b": number})], "c": ()},
    ]
    results = []
    for strategy in [*both(lib), *single(lib)]:
        for make in makers:
            nest = strategy.run(lambda make=make: make(lib.tensor(replica_id(lib))))
            results.append(strategy.experimental_local_results(nest))
    return results


@scenario("LOC-3")
def those_of_nests_without_tensors(lib: Library) -> Any:
    nest = {"a": [1, "text"], "b": (None, 2.5)}
    strategies = [*both(lib), *single(lib)]
    return [each.experimental_local_results(nest) for each in strategies]


@scenario("LOC-1", "LOC-2")
def those_of_single_values(lib: Library) -> Any:
    results = []
    for strategy in both(lib):
        local = strategy.experimental_local_results
        results.append(local(per_replica(lib, strategy, [0, 1])))
        results += [local(value) for value in (lib.tensor([2.0]), None, "text", 3)]
        results.append(local(lib.distribute.Mirrored((1, 1))))
    return results


@scenario("LOC-4")
def those_of_an_empty_nest(lib: Library) -> Any:
    strategies = [*both(lib), mirrored(lib, 3), *single(lib)]
    return [each.experimental_local_results(()) for each in strategies]


@scenario("LOC-5", "LOC-1")
def those_of_a_variable(lib: Library) -> Any:
    results = []
    for strategy in [*both(lib), *single(lib)]:
        with strategy.scope():
            variable = lib.distribute.Variable(1.0)
        local = strategy.experimental_local_results(variable)
        results.append((len(local), local[0] is variable))
    return results


@scenario("LOC-6")
def one_replica_opens_nothing(lib: Library) -> Any:
    nest = {"a": [1, 2]}
    locals_ = [each.experimental_local_results(nest) for each in single(lib)]
    return [len(local) == 1 and local[0] is nest for local in locals_]
