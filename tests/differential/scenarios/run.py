"""Running a function once per replica."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.contexts import state, strategies
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import (
    central,
    mirrored,
    one_device,
    per_replica,
    replica_id,
)


class TroubleError(Exception):
    """What a scenario raises by itself."""


def fail(*_: Any) -> None:
    """Raise a TroubleError."""
    raise TroubleError("trouble")


def merge(lib: Library, fn: Any) -> Any:
    """Return what a merge call gives in this replica."""
    return lib.distribute.get_replica_context().merge_call(fn)


@scenario("RUN-1", "RUN-7")
def replicas_take_turns(lib: Library) -> Any:
    traces = []
    for strategy in (*strategies(lib), mirrored(lib, 3)):
        trace: list[str] = []

        def fn(trace: list[str] = trace) -> None:
            trace.append(f"a{replica_id(lib)}")
            merge(lib, lambda strategy: trace.append("merge"))
            trace.append(f"b{replica_id(lib)}")

        strategy.run(fn)
        traces.append(trace)
    return traces


@scenario("RUN-1", "REP-2", core=(24, 40))
def each_replica_has_its_number(lib: Library) -> Any:
    seen = []
    for strategy in (*strategies(lib), mirrored(lib, 3)):
        numbers: list[int] = []
        strategy.run(lambda numbers=numbers: numbers.append(replica_id(lib)))
        seen.append(numbers)
    return seen


@scenario("RUN-2", "OD-1")
def one_replica_gives_its_values_as_they_are(lib: Library) -> Any:
    default = lib.distribute.get_strategy()
    value = object()
    return [
        each.run(lambda x: x, (value,)) is value
        for each in (default, one_device(lib), mirrored(lib, 1), central(lib, 1))
    ]


@scenario("RUN-3")
def replicas_replace_the_device_of_the_caller(lib: Library) -> Any:
    devices: list[str] = []

    def fn() -> None:
        devices.append(lib.distribute.get_replica_context().devices[0][0])

    with lib.device("/device:CPU:3"):
        mirrored(lib).run(fn)
    return devices


@scenario("RUN-3", core=(41,))
def gradients_in_replicas(lib: Library) -> Any:
    strategy = mirrored(lib)
    parts = [lib.tensor([5.0, 6.0]), lib.tensor([7.0, 8.0])]
    values = per_replica(lib, strategy, parts)
    return strategy.run(lambda x: lib.gradients(lambda v: v * v, x), (values,))


@scenario("RUN-3", "RUN-4", core=(41,))
def gradients_in_compiled_replicas(lib: Library) -> Any:
    strategy = mirrored(lib)
    square = lib.compiled(lambda v: v * v)
    parts = [lib.tensor([5.0, 6.0]), lib.tensor([7.0, 8.0])]
    values = per_replica(lib, strategy, parts)
    return strategy.run(lambda x: lib.gradients(square, x), (values,))


@scenario("RUN-4", core=(32,))
def a_compiled_replica_merges(lib: Library) -> Any:
    strategy = mirrored(lib)

    def add(strategy: Any, value: Any) -> Any:
        return strategy.reduce("SUM", value, axis=None)

    def fn(value: Any) -> Any:
        return lib.distribute.get_replica_context().merge_call(add, (value * 2.0,))

    values = per_replica(lib, strategy, [lib.tensor(1.0), lib.tensor(2.0)])
    result = strategy.run(lib.compiled(fn), (values,))
    return strategy.experimental_local_results(result)


@scenario("RUN-4", core=(31,))
def a_graph_within_a_replica_does_not_merge(lib: Library) -> Any:
    says = ("merge_call` called while defining",)

    def inner(value: Any) -> Any:
        return lib.distribute.get_replica_context().all_reduce("SUM", value)

    def outer(value: Any) -> Any:
        return lib.recorded(inner)(value)

    one = lib.tensor(1.0)
    return [
        attempt(mirrored(lib).run, outer, (one,), says=says),
        attempt(central(lib).run, outer, (one,), says=says),
        one_device(lib).run(outer, (one,)),
    ]


@scenario("RUN-5", "MRG-4", core=(26, 40))
def errors_come_out_of_run(lib: Library) -> Any:
    def after_merge() -> None:
        merge(lib, lambda strategy: None)
        fail()

    def in_second_replica() -> None:
        if replica_id(lib) == 1:
            fail()
        merge(lib, lambda strategy: None)

    def in_second_merge() -> None:
        merge(lib, lambda s: s.run(lambda: merge(lib, fail)))

    calls = [fail, lambda: merge(lib, fail), after_merge, in_second_merge]
    return [
        [
            *(attempt(strategy.run, call, says=("trouble",)) for call in calls),
            attempt(mirrored(lib).run, in_second_replica, says=("trouble",)),
            state(lib),
        ]
        for strategy in strategies(lib)
    ]


@scenario("RUN-5")
def a_stopped_replica_does_not_go_on(lib: Library) -> Any:
    trace: list[str] = []

    def fn() -> None:
        trace.append(f"start {replica_id(lib)}")
        if replica_id(lib) == 1:
            fail()
        merge(lib, lambda strategy: trace.append("merge"))
        trace.append("on")

    strategy = mirrored(lib)
    return [attempt(strategy.run, fn), trace, strategy.run(lambda: replica_id(lib))]


@scenario("RUN-6", says=("should be called from outside of replica_fn",))
def a_replica_does_not_advance_an_iterator(lib: Library) -> Any:
    strategy = mirrored(lib)
    dataset = strategy.experimental_distribute_dataset(lib.range(8).batch(2))
    return strategy.run(next, (iter(dataset),))


@scenario("REG-1", "RUN-5", core=(27,))
def results_of_different_lengths(lib: Library) -> Any:
    return mirrored(lib).run(lambda: [0] * (replica_id(lib) + 1))


@scenario("STR-20", "REG-1", "REG-2", "REG-6", core=(28, 40))
def nests_of_results(lib: Library) -> Any:
    def fn(x: Any, offset: int = 0) -> Any:
        return {"a": [x + offset, x * 2], "b": (x, "same")}

    answers = []
    for strategy in (*strategies(lib), mirrored(lib, 3)):
        numbers = [lib.tensor(1.0 + index) for index in range(3)]
        x = per_replica(lib, strategy, numbers)
        answers.append(strategy.run(fn, args=(x,), kwargs={"offset": 3}))
    return answers


@scenario("REG-1", "REG-3", core=(39,))
def a_list_of_dicts_of_results(lib: Library) -> Any:
    def fn(x: Any) -> Any:
        return [{"a": x - 1.0, "b": x + 1.0}]

    strategy = mirrored(lib)
    x = per_replica(lib, strategy, [lib.tensor([1.0]), lib.tensor([2.0])])
    (results,) = strategy.run(fn, (x,))
    return [results, strategy.experimental_local_results(results)]


@scenario("STR-20")
def numbers_are_arguments_of_each_replica(lib: Library) -> Any:
    return mirrored(lib).run(lambda x: lib.tensor(x) * x, args=(2.0,))


@scenario("STR-20")
def a_run_without_a_result_is_carried_out(lib: Library) -> Any:
    strategy = mirrored(lib)
    aggregation = lib.distribute.VariableAggregation.MEAN
    with strategy.scope():
        variable = lib.distribute.Variable(0.0, aggregation=aggregation)

    def fn() -> None:
        variable.assign_add(1.0)

    strategy.run(fn)
    return variable
