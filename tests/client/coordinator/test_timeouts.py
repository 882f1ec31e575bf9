"""Calls of a coordinator that do not wait for longer than they are told."""

from __future__ import annotations

import threading

import pytest
import torch

from stratagem import DeadlineExceededError, Variable
from tests.client.coordinator.coordination import coordinating
from tests.client.coordinator.here import Gate, Journal
from tests.waiting import eventually


def test_join_names_what_has_not_ended_and_can_be_called_again() -> None:
    gate = Gate()
    with coordinating(num_workers=1) as coordination:
        coordinator = coordination.coordinator
        value = coordinator.schedule(gate.pass_through)
        gate.wait_for()
        with pytest.raises(
            DeadlineExceededError,
            match=r"join waited for 0 s: .*task:0 has .*pass_thro",
        ):
            coordinator.join(timeout=0)
        gate.open()
        coordinator.join(timeout=60)
        assert value.fetch() is None


def test_join_names_workers_that_are_not_there() -> None:
    with coordinating(num_workers=2) as coordination:
        coordinator = coordination.coordinator
        eventually(lambda: coordinator.workers == [0, 1])
        for worker in 0, 1:
            coordination.stop(worker)
        eventually(lambda: coordinator.workers == [])
        coordinator.schedule(int)
        with pytest.raises(DeadlineExceededError, match="task:1 is not there"):
            coordinator.join(timeout=0.01)


def test_a_function_that_found_no_room_does_not_run() -> None:
    gate, ran = Gate(), Journal()
    with coordinating(num_workers=1, queue_size=1) as coordination:
        coordinator = coordination.coordinator
        values = [coordinator.schedule(gate.pass_through) for _ in range(3)]
        with pytest.raises(DeadlineExceededError, match=r"schedule waited .* is full"):
            coordinator.schedule(ran.write, args=(1,), timeout=0.01)
        gate.open()
        coordinator.join()
        assert coordinator.fetch(values) == [None] * 3
        assert not ran.entries


def test_who_waits_behind_another_thread_waits_no_longer_than_told() -> None:
    gate = Gate()
    with coordinating(num_workers=1) as coordination:
        coordinator = coordination.coordinator
        coordinator.schedule(gate.pass_through)
        joining = threading.Thread(target=coordinator.join)
        joining.start()
        eventually(coordinator._dispatch._entry.locked)
        with pytest.raises(DeadlineExceededError, match="another thread"):
            coordinator.join(timeout=0.01)
        with pytest.raises(DeadlineExceededError, match="another thread"):
            coordinator.schedule(int, timeout=0.01)
        gate.open()
        joining.join()


def test_an_error_that_cannot_be_told_yet_is_told_by_the_next_call() -> None:
    gate = StubbornGate()
    with coordinating(num_workers=2) as coordination:
        coordinator = coordination.coordinator
        coordinator.schedule(gate.stay)
        gate.wait_for()
        coordinator.schedule(fail)
        eventually(lambda: coordinator._dispatch._queue.error is not None)
        with pytest.raises(DeadlineExceededError, match="have not ended") as found:
            coordinator.join(timeout=0.01)
        assert isinstance(found.value.__cause__, ZeroDivisionError)
        gate.open()
        with pytest.raises(ZeroDivisionError):
            coordinator.join(timeout=60)
        coordinator.join(timeout=60)


class StubbornGate(Gate):
    """One at which no interruption comes."""

    def stay(self) -> None:
        self._inside.write("somebody")
        while not self._open.is_set():
            try:
                self._open.wait(0.005)
            except BaseException:
                continue


def fail() -> None:
    _ = 1 / 0


def test_reading_all_copies_names_the_workers_that_have_not_answered() -> None:
    gate = Gate()
    with coordinating(num_workers=2) as coordination:
        with coordination.strategy.scope():
            variable = Variable(torch.ones(()), per_worker_variable=True)
        assert len(variable.read_all(timeout=60)) == 2
        coordination.coordinator.schedule(gate.pass_through)
        gate.wait_for()
        with pytest.raises(DeadlineExceededError, match=r"read_all .* has .*pass_thro"):
            variable.read_all(timeout=0.01)
        gate.open()
        coordination.coordinator.join()
        coordination.stop(1)
        eventually(lambda: coordination.coordinator.workers == [0])
        with pytest.raises(DeadlineExceededError, match=r"missing.*task:1 is not there"):
            variable.read_all(timeout=0.01)


def test_a_worker_that_is_to_leave_does_so_later() -> None:
    gate = Gate()
    with coordinating(num_workers=1) as coordination:
        coordinator = coordination.coordinator
        coordinator.schedule(gate.pass_through)
        gate.wait_for()
        with pytest.raises(
            DeadlineExceededError, match=r"remove_worker waited .*pass_through \(.* s\); it leav"
        ):
            coordinator.remove_worker(0, timeout=0)
        gate.open()
        coordinator.join()
        eventually(lambda: coordinator.workers == [])


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_a_timeout_is_a_number_of_seconds(timeout: float) -> None:
    with (
        coordinating(num_workers=1) as coordination,
        pytest.raises(ValueError, match="timeout of join is"),
    ):
        coordination.coordinator.join(timeout=timeout)
