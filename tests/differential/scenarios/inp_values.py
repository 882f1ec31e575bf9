"""Input of the first version, arrays, and values from functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.differential.answer import attempt
from tests.differential.inputs import steps
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import central, cpus, mirrored, one_device


def first_version(lib: Library) -> list[Any]:
    """Return strategies of the V1 API."""
    return [
        lib.v1.MirroredStrategy(cpus(2)),
        lib.v1.CentralStorageStrategy(cpus(2), "CPU:0"),
        lib.v1.OneDeviceStrategy("CPU:0"),
    ]


def rest(strategy: Any, iterator: Any) -> list[Any]:
    """Return what is left, and the error at the end."""
    seen: list[Any] = []

    def loop() -> None:
        while True:
            seen.extend(steps(strategy, [iterator.get_next()]))

    return [attempt(loop), seen]


@scenario("INP-3", "INP-49b")
def iterators_of_the_first_version_split(lib: Library) -> Any:
    answers = []
    for strategy in first_version(lib):
        iterator = strategy.make_dataset_iterator(lib.range(6).batch(4))
        answers.append(rest(strategy, iterator))
        iterator.initialize()
        answers.append(rest(strategy, iterator))
    return answers


@scenario("INP-4", "INP-30b", "INP-49b", "INP-49d", core=(180,))
def input_functions_return_a_dataset(lib: Library) -> Any:
    answers: list[Any] = []
    for strategy in first_version(lib):

        def input_fn(context: Any) -> Any:
            answers.append(str(context))
            return lib.range(10)

        iterator = strategy.make_input_fn_iterator(input_fn)
        answers.append(rest(strategy, iterator))
        iterator.initialize()
        answers.append(rest(strategy, iterator))
    return answers


@scenario("INP-4", "INP-49c", core=(180,))
def input_functions_return_a_function(lib: Library) -> Any:
    strategy = lib.v1.MirroredStrategy(cpus(2))
    numbers = iter(range(100))
    iterator = strategy.make_input_fn_iterator(lambda _: lambda: lib.tensor([float(next(numbers))]))
    return [iterator.get_next(), iterator.get_next()]


@scenario("INP-49c", says=("must return a tf.data.Dataset or a callable",))
def input_functions_return_nothing_else(lib: Library) -> Any:
    return lib.v1.MirroredStrategy(cpus(2)).make_input_fn_iterator(lambda _: 3)


@scenario("INP-49c", says=("not supported",))
def input_functions_are_for_workers(lib: Library) -> Any:
    strategy = lib.v1.MirroredStrategy(cpus(2))
    mode = lib.distribute.InputReplicationMode.PER_REPLICA
    return strategy.make_input_fn_iterator(lambda _: lib.range(4), mode)


@scenario("INP-50", core=(181,))
def rows_of_arrays_become_a_dataset(lib: Library) -> Any:
    answers = []
    for strategy in first_version(lib)[::2]:
        for arrays in (
            np.arange(5.0, dtype=np.float32),
            {"x": np.ones([3, 2]), "y": np.arange(3)},
            [np.zeros(2), np.ones(2)],
        ):
            rows = lib.batched(strategy.experimental_make_numpy_dataset(arrays), 2)
            answers.append(list(strategy.experimental_distribute_dataset(rows)))
    return answers


@scenario("INP-51", core=(183,))
def a_function_makes_a_value_for_each_replica(lib: Library) -> Any:
    contexts = []

    def values(context: Any) -> Any:
        contexts.append(str(context))
        return lib.tensor(1.0 + context.replica_id_in_sync_group)

    return [
        [strategy.experimental_distribute_values_from_function(values), list(contexts)]
        for strategy in (mirrored(lib, 3), mirrored(lib, 1), central(lib))
    ]


@scenario("INP-51", "INP-52", core=(183,))
def values_may_be_constants_and_nests(lib: Library) -> Any:
    array = np.array([3.0, 2.0, 1.0])
    functions: list[Callable[[Any], Any]] = [
        lambda context: array,
        lambda context: array[context.replica_id_in_sync_group],
        lambda context: context.num_replicas_in_sync,
        lambda context: (1.0, [lib.tensor(2.0), "text"]),
        lambda context: {"id": context.replica_id_in_sync_group, "n": (4,)},
    ]
    distribute = mirrored(lib).experimental_distribute_values_from_function
    return [distribute(function) for function in functions]


@scenario("INP-51", core=(183,))
def a_value_of_each_replica_is_run(lib: Library) -> Any:
    strategy = mirrored(lib)
    values = strategy.experimental_distribute_values_from_function(
        lambda context: lib.tensor([3.0, 2.0])[context.replica_id_in_sync_group]
    )
    squares = strategy.run(lambda x: x * x, (values,))
    return [squares, list(strategy.experimental_local_results(squares))]


@scenario("INP-51")
def one_device_gets_the_value_itself(lib: Library) -> Any:
    return [
        strategy.experimental_distribute_values_from_function(lambda context: [1, 2.0])
        for strategy in (one_device(lib), lib.distribute.get_strategy())
    ]


@scenario("INP-52")
def values_of_different_structure_are_refused(lib: Library) -> Any:
    return mirrored(lib).experimental_distribute_values_from_function(
        lambda context: [1] * context.replica_id_in_sync_group
    )
