"""Errors of functions that a coordinator has scheduled."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario


def checked(lib: Library) -> Any:
    """Return a function that doubles numbers which are not negative."""

    def double(value: Any) -> Any:
        lib.require(value >= 0.0, "it is negative")
        return value * 2.0

    return lib.function(double)


@scenario("ERR-1", "ERR-4", "ERR-6")
def join_raises_an_error_once(lib: Library) -> Any:
    with lib.coordinated(workers=2) as cluster:
        coordinator, double = cluster.coordinator, checked(lib)
        coordinator.schedule(double, args=(lib.tensor(-1.0),))
        return [
            attempt(coordinator.join, says=("it is negative",)),
            coordinator.join(),
            coordinator.done(),
            coordinator.schedule(double, args=(lib.tensor(1.0),)).fetch(),
        ]


@scenario("ERR-4", "ERR-5", "ERR-6")
def schedule_raises_an_error_of_before(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        coordinator, double = cluster.coordinator, checked(lib)
        failed = coordinator.schedule(double, args=(lib.tensor(-1.0),))
        attempt(failed.fetch)
        good = double, (lib.tensor(1.0),)
        return [
            attempt(coordinator.schedule, *good, says=("it is negative",)),
            coordinator.done(),
            coordinator.schedule(*good).fetch(),
        ]


@scenario("ERR-4")
def done_raises_an_error_of_before(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        coordinator, double = cluster.coordinator, checked(lib)
        attempt(coordinator.schedule(double, args=(lib.tensor(-1.0),)).fetch)
        return [
            attempt(coordinator.done, says=("it is negative",)),
            coordinator.done(),
        ]


@scenario("ERR-2", "ERR-4")
def many_errors_are_raised_as_one(lib: Library) -> Any:
    with lib.coordinated(workers=2) as cluster:
        coordinator, double = cluster.coordinator, checked(lib)

        def fail_often() -> None:
            for _ in range(6):
                coordinator.schedule(double, args=(lib.tensor(-1.0),))
            coordinator.join()

        first = attempt(fail_often, says=("it is negative",))
        return [first, coordinator.join(), coordinator.done()]


@scenario("ERR-6")
def errors_are_raised_again_and_again(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        coordinator, double = cluster.coordinator, checked(lib)
        found = []
        for value in -1.0, 1.0, -2.0:
            coordinator.schedule(double, args=(lib.tensor(value),))
            found.append(attempt(coordinator.join, says=("it is negative",)))
        return found


@scenario("ERR-6")
def iterators_outlive_errors(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        coordinator, double = cluster.coordinator, checked(lib)
        iterator = iter(coordinator.create_per_worker_dataset(lambda: lib.range(9)))
        following = lib.function(lambda one: next(one))
        found = [coordinator.schedule(following, args=(iterator,)).fetch()]
        coordinator.schedule(double, args=(lib.tensor(-1.0),))
        attempt(coordinator.join)
        return [*found, coordinator.schedule(following, args=(iterator,)).fetch()]


@scenario("ERR-8")
def a_value_raises_its_error_each_time(lib: Library) -> Any:
    with lib.coordinated() as cluster:
        coordinator, double = cluster.coordinator, checked(lib)
        value = coordinator.schedule(double, args=(lib.tensor(-1.0),))
        calls = value.fetch, value.get, value.fetch, coordinator.join, value.get
        return [attempt(call, says=("it is negative",)) for call in calls]
