"""Workers and servers that are lost while they are needed."""

from __future__ import annotations

import gc
import logging
import threading
import weakref

import pytest

import stratagem
from stratagem import CancelledError, PSUnavailableError, SessionLostError
from stratagem.coordinator import (
    ClusterCoordinator,
    experimental_get_current_worker_index,
)
from tests.client.coordinator.coordination import coordinating
from tests.client.coordinator.here import Gate, Journal
from tests.waiting import eventually


def where() -> int:
    return experimental_get_current_worker_index()


def gone_through(gate: Gate) -> int:
    gate.pass_through()
    return where()


@pytest.mark.spec("FLT-1", "FLT-2", "FLT-3")
def test_another_worker_takes_over_what_a_lost_one_had() -> None:
    gate = Gate()
    with coordinating(num_workers=2) as coordination:
        coordinator = coordination.coordinator
        values = [coordinator.schedule(gone_through, args=(gate,)) for _ in range(4)]
        gate.wait_for(2)
        coordination.stop(0)
        gate.wait_for(2)
        gate.open()
        coordinator.join()
        assert coordinator.fetch(values) == [1, 1, 1, 1]


@pytest.mark.spec("FLT-2")
def test_what_a_lost_worker_had_goes_to_the_tail_of_the_queue() -> None:
    gate, journal = Gate(), Journal()

    def first() -> None:
        gate.pass_through()
        journal.write("first")

    with coordinating(num_workers=1) as coordination:
        coordinator = coordination.coordinator
        coordinator.schedule(first)
        gate.wait_for(1)
        for number in range(3):
            coordinator.schedule(journal.write, args=(number,))
        coordination.stop(0)
        gate.open()
        coordination.start(0)
        coordinator.join()
    assert journal.entries.index("first") > journal.entries.index(2)


@pytest.mark.spec("FLT-3", "FLT-4")
def test_functions_wait_until_a_worker_comes_back() -> None:
    with coordinating(num_workers=2) as coordination:
        coordinator = coordination.coordinator
        coordinator.join()
        for worker in 0, 1:
            coordination.stop(worker)
        values = [coordinator.schedule(where) for _ in range(5)]
        coordination.start(1)
        coordinator.join()
        assert coordinator.fetch(values) == [1] * 5


@pytest.mark.spec("FLT-5")
def test_a_worker_may_be_lost_while_it_makes_a_dataset() -> None:
    gate = Gate()

    def slow() -> list[int]:
        gate.pass_through()
        return [7]

    with coordinating(num_workers=1) as coordination:
        coordinator = coordination.coordinator
        iterator = iter(coordinator.create_per_worker_dataset(slow))
        value = coordinator.schedule(next, args=(iterator,))
        gate.wait_for(1)
        coordination.stop(0)
        gate.open()
        coordination.start(0)
        assert value.fetch() == 7


@pytest.mark.spec("FLT-14")
def test_what_a_lost_worker_had_is_cancelled_while_an_error_is_reported() -> None:
    gate = Gate()
    with coordinating(num_workers=1) as coordination:
        coordinator = coordination.coordinator
        value = coordinator.schedule(gate.pass_through)
        gate.wait_for(1)
        coordinator._dispatch._queue.fault(ValueError("broken"))
        coordination.stop(0)
        with pytest.raises(ValueError, match="broken"):
            coordinator.join()
        with pytest.raises(CancelledError, match="Please reschedule"):
            value.fetch()
        gate.open()


@pytest.mark.spec("FLT-6", "FLT-7")
@pytest.mark.parametrize("report", ["join", "schedule"])
def test_a_lost_server_is_reported(report: str) -> None:
    with coordinating(num_workers=1, connect_seconds=0.2) as coordination:
        coordinator = coordination.coordinator
        with coordination.strategy.scope():
            variable = stratagem.Variable(1.0)
        assert coordinator.schedule(variable.read_value).fetch() == 1
        coordination.stop_server(0)
        value = coordinator.schedule(variable.read_value)
        with pytest.raises(PSUnavailableError, match="/job:ps/task:0"):
            value.fetch()
        arguments = () if report == "join" else (where,)
        with pytest.raises(PSUnavailableError, match="/job:ps/task:0"):
            getattr(coordinator, report)(*arguments)


@pytest.mark.spec("FLT-7")
def test_a_worker_that_is_new_reports_what_a_server_has_lost() -> None:
    with coordinating(num_workers=1) as coordination:
        coordinator = coordination.coordinator
        with coordination.strategy.scope():
            variable = stratagem.Variable(1.0)
        coordinator.schedule(where).fetch()  # without the servers
        coordination.stop(0)
        coordination.restart_server(0)
        coordination.start(0)
        value = coordinator.schedule(variable.assign_add, args=(1.0,))
        for report in value.fetch, coordinator.join:
            with pytest.raises(SessionLostError, match=r"/job:ps/task:0.*restarted"):
                report()


@pytest.mark.spec("FLT-12")
def test_workers_may_start_one_after_the_other() -> None:
    with coordinating(start_delay=1000.0, longest_start_delay=1000.0) as coordination:
        values = [coordination.coordinator.schedule(where) for _ in range(4)]
        assert coordination.coordinator.fetch(values) == [0] * 4


@pytest.mark.spec("FLT-12")
def test_no_worker_starts_later_than_the_longest_delay() -> None:
    gate = Gate()
    with coordinating(start_delay=1000.0, longest_start_delay=0.01) as coordination:
        for _ in range(2):
            coordination.coordinator.schedule(gate.pass_through)
        gate.wait_for(2)
        gate.open()


@pytest.mark.spec("FLT-13")
def test_a_watchdog_tells_what_hangs(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    with (
        caplog.at_level(logging.WARNING, "stratagem"),
        coordinating(num_workers=1, watchdog_seconds=0.05) as coordination,
    ):
        coordination.coordinator.schedule(gate.pass_through)
        eventually(lambda: "no scheduled function has ended" in caplog.text)
        assert "/job:worker/task:0 has Gate.pass_through" in caplog.text
        assert "Thread MainThread" in caplog.text
        gate.open()


@pytest.mark.spec("COO-18")
def test_a_coordinator_that_is_dropped_stops_its_threads() -> None:
    def threads() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if "worker-" in each.name}

    before = threads()
    with coordinating(num_workers=1) as coordination:
        strategy = coordination.new_strategy()
        coordinator = ClusterCoordinator(strategy)
        assert coordinator.schedule(where).fetch() == 0
        dropped = weakref.ref(coordinator)
        strategy.close()
        del coordinator, strategy
        gc.collect()
        assert dropped() is None
        eventually(lambda: len(threads() - before) == 1)
