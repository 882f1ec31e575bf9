"""Workers and servers that are lost."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Coordinated, Library
from tests.differential.scenario import scenario


def adding(lib: Library, cluster: Coordinated) -> tuple[Any, Any]:
    """Return a variable, which is 0, and a function that adds 1 to it."""
    with cluster.strategy.scope():
        total = lib.distribute.Variable(0.0)
    return total, lib.function(lambda: total.assign_add(1.0) * 1.0)


@scenario("FLT-2", "FLT-3")
def a_worker_is_lost_between_functions(lib: Library) -> Any:
    with lib.coordinated(lossy=True) as cluster:
        coordinator, (total, add) = cluster.coordinator, adding(lib, cluster)
        for _ in range(2):
            coordinator.schedule(add)
        coordinator.join()
        cluster.lose_worker(0)
        cluster.return_worker(0)
        for _ in range(2):
            coordinator.schedule(add)
        return [coordinator.join(), total.read_value()]


@scenario("FLT-2", "FLT-3")
def others_do_what_a_lost_worker_had(lib: Library) -> Any:
    with lib.coordinated(workers=2, lossy=True) as cluster:
        coordinator = cluster.coordinator
        double = lib.function(lambda value: value * 2.0)
        coordinator.schedule(double, args=(lib.tensor(0.0),)).fetch()
        cluster.lose_worker(0)
        numbers = [lib.tensor(float(number)) for number in range(4)]
        values = [coordinator.schedule(double, args=(one,)) for one in numbers]
        return [coordinator.join(), coordinator.fetch(values)]


@scenario("FLT-4")
def functions_wait_until_a_worker_returns(lib: Library) -> Any:
    with lib.coordinated(lossy=True) as cluster:
        coordinator, (total, add) = cluster.coordinator, adding(lib, cluster)
        coordinator.schedule(add)
        coordinator.join()
        cluster.lose_worker(0)
        for _ in range(2):
            coordinator.schedule(add)
        done = coordinator.done()
        cluster.return_worker(0)
        return [done, coordinator.join(), total.read_value()]


@scenario("FLT-15")
def servers_are_read_while_a_worker_is_away(lib: Library) -> Any:
    with lib.coordinated(lossy=True) as cluster:
        coordinator, (total, add) = cluster.coordinator, adding(lib, cluster)
        coordinator.schedule(add)
        coordinator.join()
        cluster.lose_worker(0)
        coordinator.schedule(add)
        away = total.read_value()
        cluster.return_worker(0)
        return [away, coordinator.join(), total.read_value()]


@scenario("FLT-6", "FLT-7")
def a_lost_server_is_an_error(lib: Library) -> Any:
    with lib.coordinated(lossy=True) as cluster:
        coordinator, (_, add) = cluster.coordinator, adding(lib, cluster)
        coordinator.schedule(add)
        coordinator.join()
        cluster.lose_server()
        coordinator.schedule(add)
        error = attempt(coordinator.join)
        return "UnavailableError" in error.classes
