"""Datasets and values for replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import numpy as np

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import central, cpus, mirrored, one_device

ROWS = (10, 4), (9, 4), (7, 3), (5, 1), (8, 8), (1, 4)


def steps(strategy: Any, distributed: Iterable[Any]) -> list[Any]:
    """Return what each replica gets in each step."""
    return [list(strategy.experimental_local_results(each)) for each in distributed]


def split(strategy: Any, dataset: Any, options: Any = None) -> list[Any]:
    return steps(strategy, strategy.experimental_distribute_dataset(dataset, options))


def dealt(strategy: Any, dataset: Any, options: Any = None) -> list[Any]:
    return steps(
        strategy,
        strategy.distribute_datasets_from_function(lambda _: dataset, options),
    )


@scenario("INP-1", "INP-11", core=(162,))
def ten_batches_are_halved(lib: Library) -> Any:
    return split(mirrored(lib), lib.range(100).batch(10))


@scenario("INP-11", "INP-12", "INP-13")
def each_batch_is_cut_on_its_own(lib: Library) -> Any:
    return [
        split(mirrored(lib, replicas), lib.range(count).batch(size))
        for replicas in (2, 3, 4)
        for count, size in ROWS
    ]


@scenario("INP-11", "INP-12")
def batches_are_cut_alike_for_one_copy_of_variables(lib: Library) -> Any:
    return [
        split(central(lib, replicas), lib.range(count).batch(size))
        for replicas in (2, 3)
        for count, size in ROWS
    ]


@scenario("INP-11")
def sharing_by_rows_is_the_default(lib: Library) -> Any:
    strategy = mirrored(lib, 3)
    return [
        steps(strategy, lib.sharded(strategy, lib.range(10).batch(4), policy))
        for policy in ("AUTO", "DATA")
    ]


@scenario("INP-14")
def one_worker_that_shares_nothing(lib: Library) -> Any:
    strategy = mirrored(lib)
    sizes = (9, 4), (7, 3), (8, 4)
    return [
        steps(strategy, lib.sharded(strategy, lib.range(count).batch(size), "OFF"))
        for count, size in sizes
    ]


@scenario("INP-14")
def pieces_without_sharing_flow_over_batches(lib: Library) -> Any:
    strategy = mirrored(lib, 3)
    return steps(strategy, lib.sharded(strategy, lib.range(10).batch(4), "OFF"))


@scenario("INP-14", "INP-19")
def one_worker_under_hint(lib: Library) -> Any:
    strategy = mirrored(lib)
    return steps(strategy, lib.sharded(strategy, lib.range(8).batch(4), "HINT"))


@scenario("INP-20", core=(176,))
def a_short_batch_may_be_dropped(lib: Library) -> Any:
    strategy = mirrored(lib)
    five_and_six = lib.dataset([5, 6])
    return [
        split(strategy, five_and_six.batch(2, drop_remainder=True)),
        split(strategy, five_and_six.batch(1, drop_remainder=True)),
        split(strategy, five_and_six.batch(2)),
        split(strategy, lib.range(7).batch(3, drop_remainder=True)),
    ]


@scenario("INP-10", "OD-3")
def one_replica_takes_elements_as_they_are(lib: Library) -> Any:
    datasets = lib.range(3).batch(2), lib.range(2)
    return [
        list(strategy.experimental_distribute_dataset(dataset))
        for strategy in (one_device(lib), mirrored(lib, 1))
        for dataset in datasets
    ]


@scenario("INP-22")
def single_elements_cannot_be_split(lib: Library) -> Any:
    return [
        attempt(split, strategy, lib.range(4))
        for strategy in (mirrored(lib), central(lib))
    ]


@scenario("INP-24")
def every_leaf_is_split(lib: Library) -> Any:
    elements = [
        {"x": lib.tensor([k, -k]), "y": {"z": float(k)}} for k in (1.0, 2.0, 3.0)
    ]
    strategy = mirrored(lib)
    return list(
        strategy.experimental_distribute_dataset(lib.dataset(elements).batch(3))
    )


@scenario("INP-26")
def what_is_no_dataset_is_refused(lib: Library) -> Any:
    strategy = mirrored(lib)
    return [
        attempt(split, strategy, 5),
        attempt(dealt, strategy, 5),
        attempt(dealt, strategy, None),
    ]


@scenario("INP-27", core=(177,))
def a_replica_without_rows_takes_part(lib: Library) -> Any:
    strategy = mirrored(lib)

    def fn(x: Any) -> Any:
        return x * 2, lib.total(x), 3

    (value,) = strategy.experimental_distribute_dataset(lib.dataset([5.0]).batch(2))
    return strategy.run(fn, (value,))


@scenario("INP-28", core=(161,))
def a_last_round_is_padded(lib: Library) -> Any:
    strategy = mirrored(lib)
    return [
        dealt(strategy, lib.range(9).batch(2)),
        dealt(strategy, lib.range(5).batch(2)),
        dealt(strategy, lib.range(9).batch(2, drop_remainder=True)),
    ]


@scenario("INP-28", "INP-27")
def padding_has_the_form_of_the_data(lib: Library) -> Any:
    dataset = lib.dataset([{"x": lib.tensor([1.0, 2.0]), "y": 3}]).batch(1)
    strategy = mirrored(lib, 3)
    return list(strategy.distribute_datasets_from_function(lambda _: dataset))


@scenario("INP-29")
def a_round_of_fixed_shapes_is_not_padded(lib: Library) -> Any:
    return dealt(mirrored(lib), lib.range(10).batch(2, drop_remainder=True))


@scenario("INP-29")
def a_round_of_numbers_is_not_padded(lib: Library) -> Any:
    return dealt(mirrored(lib), lib.range(3))


@scenario("INP-29")
def a_round_is_not_padded_for_one_copy_of_variables(lib: Library) -> Any:
    return dealt(central(lib), lib.range(5).batch(2))


@scenario("INP-30c")
def an_endless_dataset_has_whole_rounds(lib: Library) -> Any:
    dataset = lib.range(3).batch(2).repeat()
    answers = []
    for strategy in (mirrored(lib), central(lib)):
        distributed = strategy.distribute_datasets_from_function(lambda _: dataset)
        answers.append(steps(strategy, islice(distributed, 4)))
    return answers


def options(lib: Library, *values: Any, mode: str = "PER_REPLICA") -> Any:
    """Return InputOptions: whether to fetch, and whether to place on the device."""
    fetch, place = values
    modes = lib.distribute.InputReplicationMode
    return lib.distribute.InputOptions(
        experimental_fetch_to_device=fetch,
        experimental_replication_mode=modes[mode],
        experimental_place_dataset_on_device=place,
    )


def told(lib: Library, strategy: Any, given: Any) -> Any:
    """Return which contexts a function is called with, and what replicas get."""
    contexts = []

    def dataset_fn(context: Any) -> Any:
        contexts.append(
            (
                context.num_input_pipelines,
                context.input_pipeline_id,
                context.num_replicas_in_sync,
            )
        )
        first = 10 * context.input_pipeline_id
        return lib.dataset([first + k for k in range(4)]).batch(1)

    distributed = strategy.distribute_datasets_from_function(dataset_fn, given)
    return [steps(strategy, distributed), contexts]


SAYS = ("must also specify `PER_REPLICA`", "can not be set to True when")


@scenario("INP-31", "INP-32", core=(171,))
def options_contradict_each_other(lib: Library) -> Any:
    return [
        attempt(told, lib, strategy, given, says=SAYS)
        for strategy in (mirrored(lib), central(lib))
        for given in (
            options(lib, True, True, mode="PER_WORKER"),
            options(lib, False, True, mode="PER_WORKER"),
            options(lib, True, True),
        )
    ]


@scenario("INP-30", "INP-35", core=(172,))
def a_pipeline_for_each_worker(lib: Library) -> Any:
    given = options(lib, True, False, mode="PER_WORKER")
    return [
        told(lib, strategy, each)
        for strategy in (mirrored(lib), central(lib), one_device(lib))
        for each in (None, given)
    ]


@scenario("INP-35", core=(172,))
def a_pipeline_for_each_replica(lib: Library) -> Any:
    return [
        told(lib, mirrored(lib, 3), options(lib, True, False)),
        told(lib, mirrored(lib), options(lib, False, True)),
        told(lib, mirrored(lib), options(lib, False, False)),
    ]


@scenario("INP-35", says=("only supported in",))
def a_pipeline_for_the_replica_of_one_device(lib: Library) -> Any:
    return told(lib, one_device(lib), options(lib, True, False))


@scenario("INP-35")
def a_pipeline_for_each_replica_beside_one_copy(lib: Library) -> Any:
    return told(lib, central(lib), options(lib, True, False))


@scenario("INP-36")
def not_fetching_does_not_change_values(lib: Library) -> Any:
    given = options(lib, False, False, mode="PER_WORKER")
    made: list[Callable[[Library], Any]] = [mirrored, central, one_device]
    return [
        *(told(lib, make(lib), given) for make in made),
        split(mirrored(lib), lib.range(3).batch(2), given),
    ]


@scenario("INP-34")
def one_dataset_has_no_pipeline_for_each_replica(lib: Library) -> Any:
    given = options(lib, True, False)
    return [
        attempt(split, strategy, lib.range(2).batch(2), given, says=("only supported",))
        for strategy in (mirrored(lib), one_device(lib))
    ]


@scenario("INP-33", says=("only supported",))
def one_dataset_beside_one_copy_has_no_pipeline_for_each_replica(lib: Library) -> Any:
    return split(central(lib), lib.range(2).batch(2), options(lib, True, False))


@scenario("INP-33")
def options_of_a_dataset_beside_one_copy(lib: Library) -> Any:
    given = options(lib, True, False, mode="PER_WORKER")
    return split(central(lib), lib.range(4).batch(4), given)


@scenario("INP-31")
def a_split_dataset_may_be_placed(lib: Library) -> Any:
    given = options(lib, True, True, mode="PER_WORKER")
    return [
        split(strategy, lib.range(4).batch(4), given)
        for strategy in (mirrored(lib), one_device(lib))
    ]


@scenario("INP-37")
def a_buffer_changes_no_values(lib: Library) -> Any:
    return [
        split(
            mirrored(lib),
            lib.range(10).batch(4),
            lib.distribute.InputOptions(experimental_per_replica_buffer_size=size),
        )
        for size in (1, 4)
    ]


@scenario("INP-40")
def each_iterator_starts_from_the_beginning(lib: Library) -> Any:
    strategy = mirrored(lib)
    distributed = strategy.experimental_distribute_dataset(lib.range(6).batch(2))
    first, second = iter(distributed), iter(distributed)
    return [
        next(first),
        next(first),
        next(second),
        next(first),
        next(iter(distributed)),
    ]


@scenario("INP-41", "INP-11", core=(173,))
def a_loop_squares_what_it_is_given(lib: Library) -> Any:
    strategy = mirrored(lib)
    dataset = lib.dataset([5.0, 6.0, 7.0, 8.0]).batch(2)
    distributed = strategy.experimental_distribute_dataset(dataset)
    by_loop = [strategy.run(lambda x: x * x, (x,)) for x in distributed]
    return [by_loop, [strategy.run(lambda x: x * x, (x,)) for x in iter(distributed)]]


@scenario("INP-42", core=(175,))
def a_loop_ends_with_an_error(lib: Library) -> Any:
    strategy = mirrored(lib)
    dataset = lib.dataset([5, 6, 7, 8]).batch(2)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    seen = []

    def loop() -> None:
        while True:
            seen.append(strategy.reduce("SUM", iterator.get_next(), axis=0))

    error = attempt(loop)
    return [error, seen, attempt(next, iterator), attempt(iterator.get_next)]


@scenario("INP-43")
def an_optional_ends_a_loop(lib: Library) -> Any:
    strategy = mirrored(lib)
    iterator = iter(strategy.experimental_distribute_dataset(lib.range(3).batch(2)))
    seen = []
    optional = iterator.get_next_as_optional()
    while bool(optional.has_value()):
        seen.append(optional.get_value())
        optional = iterator.get_next_as_optional()
    return [seen, attempt(optional.get_value)]


@scenario("INP-44", core=(168,))
def a_replica_cannot_ask_for_input(lib: Library) -> Any:
    strategy = mirrored(lib)
    iterator = iter(strategy.experimental_distribute_dataset(lib.range(4).batch(2)))
    says = ("should be called from outside of replica_fn",)
    return [
        attempt(strategy.run, lambda: next(iterator), says=says),
        attempt(strategy.run, lambda: iterator.get_next(), says=says),
        next(iterator),
    ]


@scenario("INP-45")
def the_form_of_elements_is_told(lib: Library) -> Any:
    dataset = lib.dataset([{"x": lib.tensor([1.0, 2.0]), "y": 3}] * 4).batch(2)
    distributed = mirrored(lib).experimental_distribute_dataset(dataset)
    alone = one_device(lib).experimental_distribute_dataset(dataset)
    return [
        distributed.element_spec,
        iter(distributed).element_spec,
        alone.element_spec,
    ]


@scenario("INP-47")
def datasets_know_their_number_of_steps(lib: Library) -> Any:
    return [
        int(strategy.experimental_distribute_dataset(dataset).cardinality)
        for strategy in (mirrored(lib), central(lib), one_device(lib))
        for dataset in (lib.range(10).batch(4), lib.range(9).batch(3))
    ]


@scenario("INP-48", core=(167,))
def orders_last_or_change_as_the_dataset_says(lib: Library) -> Any:
    strategy = mirrored(lib)
    answers = []
    for dataset in (
        lib.range(100).shuffle(100).batch(10).cache(),
        lib.range(100).shuffle(100).batch(10),
    ):
        distributed = strategy.experimental_distribute_dataset(dataset)
        first, second = epoch(strategy, distributed), epoch(strategy, distributed)
        assert sorted(first) == sorted(second) == list(range(100))
        answers.append(first == second)
    return answers


def epoch(strategy: Any, distributed: Any) -> list[int]:
    """Return the numbers of one pass in their order."""
    return [
        int(number)
        for parts in steps(strategy, distributed)
        for part in parts
        for number in part
    ]


@scenario("INP-11", core=(74,))
def means_weigh_rows(lib: Library) -> Any:
    strategy = mirrored(lib)
    dataset = lib.dataset([5.0, 6.0, 7.0]).batch(3)
    (value,) = strategy.experimental_distribute_dataset(dataset)
    return strategy.reduce("MEAN", value, axis=0)


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
    iterator = strategy.make_input_fn_iterator(
        lambda _: lambda: lib.tensor([float(next(numbers))])
    )
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
