"""Functions that run where variables are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import (
    all_kinds,
    central,
    mirrored,
    per_replica,
    replica_id,
)

METHODS = "assign", "assign_add", "assign_sub"


def shared(lib: Library, strategy: Any, value: float, **traits: Any) -> Any:
    """Return a variable of a strategy."""
    with strategy.scope():
        return lib.distribute.Variable(value, **traits)


def adding(variable: Any, delta: Any) -> None:
    """Change a variable and return nothing."""
    variable.assign_add(delta)


@scenario("EXT-4", core=(95,))
def the_function_gets_the_variable_and_the_tensor(lib: Library) -> Any:
    results = []
    for strategy in all_kinds(lib):
        variable, given = shared(lib, strategy, 1.0), lib.tensor(2.0)
        update = strategy.extended.update
        seen = update(variable, lambda v, x: (v, [x]), args=(given,), group=False)
        locals_ = strategy.experimental_local_results(variable)
        same = [v is local for v, local in zip(seen[0], locals_, strict=True)]
        results.append([same, [x is given for x in seen[1][0]]])
    return results


@scenario("EXT-6")
def a_function_beside_no_variable(lib: Library) -> Any:
    results = []
    for strategy in all_kinds(lib):
        variable = shared(lib, strategy, 1.0)
        extended = strategy.extended
        calls: list[Any] = []
        where = extended.non_slot_devices([variable])
        extended.update_non_slot(where, calls.append, args=(3,))
        results.append([calls, extended.update_non_slot(where, lambda: "same")])
        results.append(extended.update_non_slot(where, lambda: "a", group=False))
    return results


@scenario("EXT-6")
def a_function_on_other_places(lib: Library) -> Any:
    first, second = (f"/device:CPU:{index}" for index in range(2))
    places = lib.distribute.Variable(1.0), lib.tensor(1.0), (first, second), (second,)
    return [
        attempt(strategy.extended.update_non_slot, where, lambda: "a", (), {}, False)
        for strategy in all_kinds(lib)
        for where in (*places, [first, second], first, None, 3)
    ]


@scenario("EXT-5", core=(97,))
def replicas_update_by_tensors_and_numbers(lib: Library) -> Any:
    results = []
    for method in METHODS:
        strategy = mirrored(lib)
        variable = shared(lib, strategy, 5.0)

        def act(v: Any, x: Any, method: str = method) -> Any:
            getattr(v, method)(x)

        def replica(strategy: Any = strategy, variable: Any = variable, act: Any = act) -> None:
            strategy.extended.update(variable, act, args=(lib.tensor(2.0),))
            strategy.extended.update(variable, act, args=(1.0,))

        strategy.run(replica)
        results.append(variable)
    return results


@scenario("EXT-4", core=(98,))
def what_updates_return(lib: Library) -> Any:
    names, results = lib.distribute, []
    on_read = names.VariableSynchronization.ON_READ
    for traits in (
        {},
        {"synchronization": on_read, "aggregation": names.VariableAggregation.SUM},
    ):
        strategy = mirrored(lib)
        variable = shared(lib, strategy, 1.0, **traits)

        def fn(v: Any, x: Any, y: Any) -> Any:
            v.assign_add(x * y)
            return {"value": v * 1.0, "none": None, "text": "same"}

        for group in (True, False):
            update = strategy.extended.update
            results.append(update(variable, fn, (2.0,), {"y": 3.0}, group))
        results.append(variable)
    return results


def counting() -> Iterator[float]:
    """Yield numbers that are other objects each time."""
    number = 1000.5
    while True:
        yield number
        number += 1.0


@scenario("EXT-4", "REG-12")
def numbers_of_several_copies_are_lost(lib: Library) -> Any:
    results = []
    for strategy in all_kinds(lib):
        variable, numbers = shared(lib, strategy, 1.0), counting()
        update = strategy.extended.update
        fns = lambda v, numbers=numbers: next(numbers), lambda v: None
        results += [update(variable, fn, group=group) for fn in fns for group in (True, False)]
    return results


@scenario("EXT-4", "VOR-8", core=(100,))
def a_variable_of_local_values(lib: Library) -> Any:
    names, strategy = lib.distribute, mirrored(lib)
    variable = shared(
        lib,
        strategy,
        1.0,
        synchronization=names.VariableSynchronization.ON_READ,
        aggregation=names.VariableAggregation.SUM,
    )
    strategy.extended.update(variable, lambda v: v.assign(5.0) and None)
    return [variable, strategy.extended.read_var(variable)]


@scenario("EXT-4")
def each_copy_gets_its_own_of_mirrored_arguments(lib: Library) -> Any:
    strategy = mirrored(lib)
    variable = shared(lib, strategy, 1.0)
    deltas = lib.distribute.Mirrored((lib.tensor(1.0), lib.tensor(2.0)))
    strategy.extended.update(variable, adding, args=(deltas,))
    return variable


@scenario("EXT-4")
def arguments_that_differ(lib: Library) -> Any:
    strategy = mirrored(lib)
    variable = shared(lib, strategy, 1.0)
    deltas = per_replica(lib, strategy, [lib.tensor(1.0), lib.tensor(2.0)])
    strategy.extended.update(variable, adding, args=(deltas,))
    return variable


@scenario("EXT-4")
def what_is_no_variable(lib: Library) -> Any:
    kinds = all_kinds(lib)
    return [attempt(each.extended.update, 3.0, lambda v: v + 1) for each in kinds]


@scenario("EXT-4", "VWR-15", core=(103,))
def a_central_variable_outside_of_the_scope(lib: Library) -> Any:
    strategy = central(lib)
    variable = shared(lib, strategy, 1.0)
    for method, value in (("assign", 3.0), ("assign_add", 2.0), ("assign_sub", 1.0)):
        getattr(variable, method)(value)
    return variable


@scenario("EXT-4", "VWR-7", "VWR-11", core=(104,))
def replicas_add_to_a_central_variable(lib: Library) -> Any:
    strategy = central(lib)
    mean = lib.distribute.VariableAggregation.MEAN
    variable = shared(lib, strategy, 1.0, aggregation=mean)

    def fn() -> Any:
        variable.assign_add(lib.tensor(1.0 + replica_id(lib)))
        return variable * 1.0

    return [strategy.run(fn), variable]
