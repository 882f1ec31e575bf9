"""Scheduling functions."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import stratagem
from stratagem import ClusterSpec, ParameterServerStrategy
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem.coordinator import (
    ClusterCoordinator,
    RemoteValue,
    RemoteValueStatus,
    experimental_get_current_worker_index,
)
from tests.client.coordinator.coordination import Coordination, coordinating
from tests.client.coordinator.here import Gate, Journal
from tests.waiting import eventually


def double(x: torch.Tensor, by: int = 2) -> torch.Tensor:
    return x * by


@pytest.mark.spec("COO-1")
def test_a_coordinator_needs_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(ValueError, match="needs a cluster"):
        ClusterCoordinator(ParameterServerStrategy())


RECIPE = r"SimpleClusterResolver\(.*'chief': .*task_type='chief', task_id=0"
WORKER, SERVER, CHIEF = {"worker": ["w:1"]}, {"ps": ["p:1"]}, {"chief": ["c:1"]}


@pytest.mark.parametrize(
    ("cluster", "task"),
    [
        ({**WORKER, **SERVER}, (None, None)),
        ({**WORKER, **SERVER}, ("chief", 0)),
        ({**WORKER, **SERVER}, ("worker", 0)),
        ({**CHIEF, **SERVER}, ("chief", 0)),
    ],
)
def test_a_cluster_that_a_coordinator_cannot_have_is_told_all_it_needs(
    cluster: Any, task: Any
) -> None:
    resolver = SimpleClusterResolver(ClusterSpec(cluster), "", *task)
    with pytest.raises(ValueError, match=RECIPE):
        ClusterCoordinator(ParameterServerStrategy(resolver))


@pytest.mark.spec("COO-1")
@pytest.mark.parametrize("consistency", ["sync", "bounded"])
def test_workers_of_a_coordinator_do_not_wait_for_each_other(
    coordination: Coordination, consistency: str
) -> None:
    strategy = coordination.new_strategy(consistency=consistency)
    with pytest.raises(ValueError, match='make it with consistency="async"'):
        ClusterCoordinator(strategy)


def test_a_closed_strategy_has_no_functions_run(coordination: Coordination) -> None:
    with coordination.new_strategy() as strategy:
        coordinator = ClusterCoordinator(strategy)
        assert coordinator.fetch(coordinator.schedule(double, args=(torch.ones(()),)))

    def is_refused() -> bool:
        try:
            coordinator.schedule(double, args=(torch.ones(()),))
        except stratagem.CancelledError as error:
            return "its strategy is" in str(error)
        return False

    eventually(is_refused)


@pytest.mark.spec("COO-2")
def test_a_scope_makes_no_coordinator(coordination: Coordination) -> None:
    with coordination.new_strategy() as strategy:
        with strategy.scope():
            pass
        assert strategy._coordinator is None


@pytest.mark.spec("COO-4")
def test_schedule_does_not_wait(coordinator: ClusterCoordinator) -> None:
    gate = Gate()
    value = coordinator.schedule(gate.pass_through)
    assert isinstance(value, RemoteValue)
    assert value.status is RemoteValueStatus.NOT_READY
    gate.open()
    coordinator.join()


@pytest.mark.spec("COO-4")
def test_arguments_are_given_by_place_name_and_default(
    coordinator: ClusterCoordinator,
) -> None:
    one = torch.ones(())
    values = [
        coordinator.schedule(double, args=(one,)),
        coordinator.schedule(double, args=[one], kwargs={"by": 3}),
        coordinator.schedule(lambda: 4.0),
    ]
    assert coordinator.fetch(values) == [2, 3, 4]


@pytest.mark.spec("COO-4")
def test_wrong_arguments_are_told_at_once(coordinator: ClusterCoordinator) -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        coordinator.schedule(double)
    with pytest.raises(TypeError, match="schedule takes a function, not int"):
        coordinator.schedule(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="args must be a tuple"):
        coordinator.schedule(double, args=3)  # type: ignore[arg-type]
    assert coordinator.done()


@pytest.mark.spec("COO-4")
def test_a_function_knows_how_many_replicas_its_worker_has(two_cpus: None) -> None:
    with (
        coordinating(num_workers=1) as coordination,
        coordination.new_strategy(num_replicas_per_worker=2) as strategy,
    ):
        value = ClusterCoordinator(strategy).schedule(
            lambda: stratagem.get_strategy().num_replicas_in_sync
        )
        assert value.fetch() == 2


@pytest.mark.spec("COO-4")
def test_a_variable_is_made_by_the_program_and_not_by_its_functions(
    coordinator: ClusterCoordinator,
) -> None:
    value = coordinator.schedule(lambda: stratagem.Variable(torch.ones(2)).numpy())
    with pytest.raises(ValueError, match="make it in the program that sends"):
        value.fetch()
    with pytest.raises(ValueError, match="make it in the program that sends"):
        coordinator.join()


@pytest.mark.spec("COO-5")
def test_arguments_are_nests_of_anything(
    coordination: Coordination, coordinator: ClusterCoordinator
) -> None:
    with coordination.strategy.scope():
        variable = stratagem.Variable(torch.tensor([1.0, 2.0]))
    nest = {"a": (torch.ones(2), 3), "b": [variable], "c": None}
    value = coordinator.schedule(
        lambda nest: nest["a"][0] * nest["a"][1] + nest["b"][0].read_value(),
        args=(nest,),
    )
    assert value.fetch().tolist() == [4, 5]


@pytest.mark.spec("COO-5")
def test_a_function_waits_for_the_values_that_it_takes(
    coordinator: ClusterCoordinator,
) -> None:
    gate = Gate()

    def first() -> torch.Tensor:
        gate.pass_through()
        return torch.ones(2)

    value = coordinator.schedule(first)
    for _ in range(3):
        value = coordinator.schedule(double, args=(value,))
    assert value.status is RemoteValueStatus.NOT_READY
    gate.open()
    assert value.fetch().tolist() == [8, 8]


@pytest.mark.spec("COO-6")
def test_functions_begin_in_the_order_in_which_they_came() -> None:
    journal = Journal()
    with coordinating(num_workers=1) as coordination:
        for number in range(20):
            coordination.coordinator.schedule(journal.write, args=(number,))
        coordination.coordinator.join()
    assert journal.entries == list(range(20))


@pytest.mark.spec("COO-6")
def test_schedule_waits_while_the_queue_is_full() -> None:
    gate = Gate()
    with coordinating(num_workers=1, queue_size=1) as coordination:
        coordinator = coordination.coordinator

        def fill() -> None:
            for _ in range(4):
                coordinator.schedule(gate.pass_through)

        filling = threading.Thread(target=fill)
        filling.start()
        gate.wait_for(1)
        # The worker has two, the queue one, and the fourth waits outside.
        eventually(lambda: coordinator._dispatch._queue.full)
        filling.join(0.05)
        assert filling.is_alive()
        gate.open()
        filling.join()
        coordinator.join()


@pytest.mark.spec("COO-7")
def test_each_worker_runs_one_function_at_a_time(
    coordinator: ClusterCoordinator,
) -> None:
    running = Journal()
    gate = Gate()

    def work() -> None:
        running.write(experimental_get_current_worker_index())
        gate.pass_through()

    for _ in range(6):
        coordinator.schedule(work)
    gate.wait_for(2)
    assert sorted(running.entries) == [0, 1]
    gate.open()
    coordinator.join()
    assert len(running.entries) == 6


@pytest.mark.spec("COO-7")
def test_a_function_does_not_wait_behind_another_while_a_worker_is_idle(
    coordinator: ClusterCoordinator,
) -> None:
    gate = Gate()
    coordinator.schedule(gate.pass_through)
    gate.wait_for(1)
    # One of these is sent to the worker that is busy.
    values = [coordinator.schedule(double, args=(torch.ones(()),)) for _ in range(3)]
    assert coordinator.fetch(values) == [2, 2, 2]
    gate.open()
    coordinator.join()


@pytest.mark.spec("COO-9")
def test_join_waits_for_all_functions(coordinator: ClusterCoordinator) -> None:
    coordinator.join()
    values = [coordinator.schedule(double, args=(torch.ones(()),)) for _ in range(9)]
    coordinator.join()
    assert {value.status for value in values} == {RemoteValueStatus.READY}
    coordinator.join()


@pytest.mark.spec("COO-9", "COO-19")
def test_nobody_can_schedule_while_another_thread_joins(
    coordinator: ClusterCoordinator,
) -> None:
    gate, journal = Gate(), Journal()
    coordinator.schedule(gate.pass_through)

    def join() -> None:
        coordinator.join()
        journal.write("joined")

    def schedule() -> None:
        coordinator.schedule(journal.write, args=("ran",))

    threads = [threading.Thread(target=target) for target in (join, schedule)]
    threads[0].start()
    eventually(coordinator._dispatch._entry.locked)
    threads[1].start()
    gate.open()
    for thread in threads:
        thread.join()
    coordinator.join()
    assert journal.entries == ["joined", "ran"]


@pytest.mark.spec("COO-19")
def test_functions_may_be_scheduled_by_several_threads(
    coordinator: ClusterCoordinator,
) -> None:
    journal = Journal()

    def schedule(number: int) -> None:
        for _ in range(5):
            coordinator.schedule(journal.write, args=(number,))

    threads = [threading.Thread(target=schedule, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    coordinator.join()
    assert sorted(journal.entries) == sorted([0, 1, 2, 3] * 5)


@pytest.mark.spec("COO-10")
def test_done_does_not_wait(coordinator: ClusterCoordinator) -> None:
    gate = Gate()
    assert coordinator.done()
    coordinator.schedule(gate.pass_through)
    assert not coordinator.done()
    gate.open()
    coordinator.join()
    assert coordinator.done()


@pytest.mark.spec("COO-17")
def test_a_function_knows_the_index_of_its_worker(
    coordinator: ClusterCoordinator,
) -> None:
    value = coordinator.schedule(experimental_get_current_worker_index)
    assert value.fetch() in (0, 1)
    with pytest.raises(RuntimeError, match="Cannot retrieve the worker index"):
        experimental_get_current_worker_index()
