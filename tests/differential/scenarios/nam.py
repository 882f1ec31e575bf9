"""Names of earlier versions that TensorFlow still has in its V1 API."""

from __future__ import annotations

from typing import Any

from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import cpus, replica_id


def strategy(lib: Library) -> Any:
    """Return two replicas."""
    return lib.v1.MirroredStrategy(cpus(2))


def number(lib: Library) -> Any:
    """Return a program of a replica: its number, as a tensor of its own."""
    return lambda: lib.tensor(float(replica_id(lib)))


@scenario("NAM-4", "NAM-13")
def the_current_strategy_counts_its_replicas(lib: Library) -> Any:
    before = lib.v1.has_strategy()
    with strategy(lib).scope():
        current = lib.v1.get_strategy()
        replicas = current.num_replicas_in_sync
        cross = lib.v1.in_cross_replica_context(), lib.v1.get_replica_context()
        return [before, lib.v1.has_strategy(), replicas, cross]


@scenario("NAM-5")
def functions_run_by_three_names(lib: Library) -> Any:
    two, fn = strategy(lib), number(lib)
    runs = two.run, two.experimental_run, two.extended.call_for_each_replica
    return [run(fn) for run in runs]


@scenario("NAM-6", "NAM-7")
def values_are_reduced_to_a_device(lib: Library) -> Any:
    two = strategy(lib)
    value = two.run(number(lib))
    return [
        two.reduce("MEAN", value),
        two.extended.reduce_to("SUM", value, "CPU:0"),
        two.extended.batch_reduce_to("MEAN", [(value, "CPU:0"), (value, "CPU:1")]),
    ]


@scenario("NAM-8", "NAM-19")
def tensors_are_broadcast_and_updates_grouped(lib: Library) -> Any:
    two = strategy(lib)
    with two.scope():
        variable = lib.v1.Variable(1.0)
    values = two.extended.broadcast_to(lib.tensor(2.0), variable)
    results = two.extended.update(variable, lambda v, x: x * 2, (lib.tensor(3.0),), group=False)
    return [two.unwrap(values), results]


@scenario("NAM-9", "NAM-16")
def local_values_are_unwrapped(lib: Library) -> Any:
    two = strategy(lib)
    value = two.run(number(lib))
    unwrapped = two.unwrap(value)
    return [type(value).__name__, unwrapped, two.experimental_local_results(value)]


@scenario("NAM-10", "NAM-11")
def steps_run_over_an_iterator(lib: Library) -> Any:
    two = strategy(lib)
    iterator = two.make_dataset_iterator(lib.range(8).batch(4))
    seen = []

    def step(context: Any, value: Any) -> None:
        seen.append([type(context).__name__, value])

    two.extended.experimental_run_steps_on_iterator(step, iterator, 2)
    return seen
