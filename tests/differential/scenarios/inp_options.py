"""Options of input, and which functions are called with what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.differential.answer import attempt
from tests.differential.inputs import split, steps
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import central, mirrored, one_device


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
