"""What scheduled functions return."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario


@scenario("RMV-1", "RMV-2")
def arrays_and_tensors(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        ones = lib.function(lambda: (lib.tensor([1.0, 2.0]), {"a": lib.tensor(3.0)}))
        value = cluster.coordinator.schedule(ones)
        return [value.fetch(), value.get(), value.fetch()]


@scenario("RMV-1")
def one_number_is_a_number(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        value = cluster.coordinator.schedule(lib.function(lambda: lib.tensor(2.5)))
        return value.fetch(), value.get()


@scenario("RMV-1")
def nothing_is_returned(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        schedule = cluster.coordinator.schedule
        return schedule(lib.function(lambda: None)).fetch()


@scenario("RMV-1")
def nothing_is_part_of_what_is_returned(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        value = cluster.coordinator.schedule(lib.function(lambda: (lib.tensor(1.0), None)))
        return attempt(value.fetch)


@scenario("RMV-2")
def values_of_replicas(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        strategy = cluster.strategy
        run = lib.function(lambda: strategy.run(lambda: lib.tensor(4.0)))
        return cluster.coordinator.schedule(run).get()


@scenario("RMV-4")
def values_are_ready_when_their_functions_have_ended(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        coordinator = cluster.coordinator

        def fail() -> Any:
            lib.require(lib.tensor(1.0) < 0.0, "it is negative")
            return lib.tensor(1.0)

        good = coordinator.schedule(lib.function(lambda: lib.tensor(1.0)))
        bad = coordinator.schedule(lib.function(fail))
        good.fetch()
        attempt(coordinator.join)
        return [lib.status(value) for value in (good, bad)]


@scenario("RMV-5")
def functions_run_though_nobody_has_their_values(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        with cluster.strategy.scope():
            total = lib.distribute.Variable(0.0)
        add = lib.function(lambda: total.assign_add(1.0) * 1.0)
        for _ in range(3):
            cluster.coordinator.schedule(add)
        cluster.coordinator.join()
        return total.read_value()


@scenario("RMV-3")
def values_outlive_their_worker(lib: Library) -> Any:
    with lib.coordinated(lossy=True) as cluster:
        value = cluster.coordinator.schedule(lib.function(lambda: lib.tensor([1.0])))
        cluster.coordinator.join()
        cluster.lose_worker(0)
        return [value.fetch(), value.get()]
