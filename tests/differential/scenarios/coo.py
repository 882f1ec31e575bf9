"""What a coordinator schedules."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import mirrored


def counter(lib: Library, strategy: Any) -> Any:
    """Return a variable of a strategy, which is 0."""
    with strategy.scope():
        return lib.distribute.Variable(0.0)


@scenario("COO-3", "COO-4", "COO-9", "COO-10")
def functions_add_to_a_variable(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        coordinator, total = cluster.coordinator, counter(lib, cluster.strategy)
        add = lib.function(lambda: total.assign_add(1.0) * 0.0)
        found = [coordinator.join(), coordinator.done()]
        for _ in range(2):
            for _ in range(5):
                coordinator.schedule(add)
            coordinator.join()
            coordinator.join()
            found += [coordinator.done(), total.read_value()]
        return [*found, coordinator.strategy is cluster.strategy]


def _standing(lib: Library, strategy: Any) -> list[Any]:
    """Where a function stands, as tensors."""
    distribute = lib.distribute
    found = [
        distribute.has_strategy(),
        distribute.in_cross_replica_context(),
        distribute.get_replica_context() is None,
        distribute.get_strategy() is strategy,
        distribute.get_strategy().num_replicas_in_sync,
    ]
    return [lib.tensor(float(each)) for each in found]


@scenario("COO-4")
def the_scope_of_a_function(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        strategy = cluster.strategy
        look = lib.function(lambda: _standing(lib, strategy))
        run = lib.function(lambda: strategy.run(_standing, args=(lib, strategy)))
        return [cluster.coordinator.schedule(each).fetch() for each in (look, run)]


@scenario("COO-1")
def there_is_one_coordinator_of_a_strategy(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        again = lib.distribute.coordinator.ClusterCoordinator(cluster.strategy)
        return again is cluster.coordinator


@scenario("COO-1")
def a_strategy_without_workers(lib: Library) -> Any:
    return lib.distribute.coordinator.ClusterCoordinator(mirrored(lib))


@scenario("COO-4", "COO-5")
def arguments_of_functions(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        schedule = cluster.coordinator.schedule
        subtract = lib.function(lambda left, right: left - right["here"][0])
        nest = {"here": [lib.tensor(2.0)]}
        values = [
            schedule(subtract, args=(lib.tensor(5.0), nest)),
            schedule(subtract, (lib.tensor(6.0),), {"right": nest}),
            schedule(subtract, kwargs={"left": lib.tensor(7.0), "right": nest}),
        ]
        return [value.fetch() for value in values]


@scenario("COO-4")
def arguments_that_a_function_does_not_take(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        coordinator = cluster.coordinator
        one = lib.function(lambda value: value + 1.0)
        return [
            attempt(coordinator.schedule, one),
            attempt(coordinator.schedule, one, (lib.tensor(1.0), lib.tensor(2.0))),
            coordinator.done(),
            coordinator.join(),
            coordinator.schedule(one, args=(lib.tensor(1.0),)).fetch(),
        ]


@scenario("COO-4")
def arguments_that_are_no_sequence(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        double = lib.function(lambda value: value * 2.0)
        return attempt(cluster.coordinator.schedule, double, 3)


@scenario("COO-4")
def a_plain_function(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        value = attempt(cluster.coordinator.schedule, lambda: lib.tensor(1.0))
        return value.fetch() if hasattr(value, "fetch") else value


@scenario("COO-5")
def a_value_as_an_argument(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        coordinator = cluster.coordinator
        double = lib.function(lambda value: value * 2.0)
        first = coordinator.schedule(double, args=(lib.tensor(1.0),))
        second = attempt(coordinator.schedule, double, (first,))
        return second.fetch() if hasattr(second, "fetch") else second


@scenario("COO-11")
def nests_of_values_are_fetched(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        coordinator = cluster.coordinator
        numbers = lib.function(lambda: {"a": lib.tensor(1.0), "b": [lib.tensor(2.0)]})
        value = coordinator.schedule(numbers)
        return coordinator.fetch({"first": value, "rest": (value, [3, "text"])})


@scenario("COO-12", "COO-13", "COO-14")
def iterators_of_a_dataset_of_the_worker(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        coordinator = cluster.coordinator
        following = lib.function(lambda iterator: next(iterator))
        dataset = coordinator.create_per_worker_dataset(lambda: lib.range(9))
        found = []
        for _ in range(2):
            iterator = iter(dataset)
            values = [coordinator.schedule(following, (iterator,)) for _ in range(3)]
            found.append(coordinator.fetch(values))
        return found


@scenario("COO-12")
def a_dataset_in_place_of_a_function(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        coordinator = cluster.coordinator
        iterator = iter(coordinator.create_per_worker_dataset(lib.range(9)))
        following = lib.function(lambda one: [next(one), next(one)])
        return coordinator.schedule(following, args=(iterator,)).fetch()


@scenario("COO-12", says=("Unexpected dataset type",))
def what_is_no_dataset(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        return cluster.coordinator.create_per_worker_dataset(3)


@scenario("COO-13")
def the_program_does_not_read_data_of_workers(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        coordinator = cluster.coordinator
        return next(iter(coordinator.create_per_worker_dataset(lambda: lib.range(3))))


@scenario("COO-15")
def the_end_of_the_data_is_an_error(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        coordinator = cluster.coordinator
        iterator = iter(coordinator.create_per_worker_dataset(lambda: lib.range(2)))
        following = lib.function(lambda one: next(one))
        values = [coordinator.schedule(following, args=(iterator,)) for _ in range(3)]
        end = attempt(coordinator.join, says=("End of sequence",))
        return [value.fetch() for value in values[:2]], end, coordinator.done()


@scenario("COO-17", says=("worker index",))
def the_program_is_no_worker(lib: Library) -> Any:
    return lib.distribute.coordinator.experimental_get_current_worker_index()
