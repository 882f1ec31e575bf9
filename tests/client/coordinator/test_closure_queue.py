"""The queue of closures, without workers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem._coordinator.closure_queue import (
    Abandon,
    Cancel,
    ClosureQueue,
    Dismiss,
    FailDependent,
    GiveUp,
    Recall,
    Run,
)
from tests.client.coordinator.queue_schedule import QueueSchedule
from tests.full import examples


def queue_with(
    *workers: int, capacity: int = 100, depth: int = 1, most_losses: int | None = None
) -> ClosureQueue:
    queue = ClosureQueue(capacity, depth, most_losses)
    for worker in workers:
        assert not queue.worker_ready(worker)
    return queue


@settings(max_examples=examples(300), deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**32 - 1))
def test_in_any_order_of_events_each_closure_ends_once(seed: int) -> None:
    schedule = QueueSchedule(seed)
    schedule.run(events=60)
    assert schedule.reports == schedule.expected
    assert schedule.queue.idle


def test_closures_run_in_the_order_in_which_they_came() -> None:
    queue = queue_with(0)
    assert queue.put(1) == [Run(1, 0)]
    assert queue.put(2) == queue.put(3) == []
    assert queue.finished(1) == [Run(2, 0)]
    assert queue.finished(2) == [Run(3, 0)]


def test_a_queue_is_full_when_as_many_wait_as_it_holds() -> None:
    queue = queue_with(0, capacity=2)
    for closure in 1, 2:
        queue.put(closure)
    assert not queue.full
    queue.put(3)
    assert queue.full
    queue.finished(1)
    assert not queue.full


def test_closures_that_wait_for_values_take_room_too() -> None:
    queue = queue_with(0, capacity=2)
    queue.put(1)
    queue.put(2, [1])
    queue.put(3, [1])
    assert queue.full


def test_the_worker_with_the_fewest_closures_gets_the_next() -> None:
    queue = queue_with(0, 1, depth=2)
    orders = [order for closure in range(5) for order in queue.put(closure)]
    assert orders == [Run(0, 0), Run(1, 1), Run(2, 0), Run(3, 1)]
    assert queue.finished(1) == [Run(4, 1)]


def test_a_worker_that_may_have_more_gets_more() -> None:
    queue = queue_with(0, 1)
    for closure in range(6):
        queue.put(closure)
    queue.deepen(1, 3)
    assert queue.finished(1) == [Run(2, 1), Run(3, 1), Run(4, 1)]
    queue.deepen(1, 1)
    assert queue.finished(2) == queue.finished(3) == []
    assert queue.finished(4) == [Run(5, 1)]


def test_a_worker_that_comes_back_has_no_more_than_others() -> None:
    queue = queue_with(0)
    queue.deepen(0, 5)
    queue.worker_lost(0)
    queue.put(1)
    queue.put(2)
    assert queue.worker_ready(0) == [Run(1, 0)]


def test_a_worker_that_comes_gets_what_waits() -> None:
    queue = queue_with(depth=2)
    queue.put(1)
    queue.put(2)
    assert queue.worker_ready(7) == [Run(1, 7), Run(2, 7)]


def test_what_a_lost_worker_had_goes_to_the_tail() -> None:
    queue = queue_with(0, depth=2)
    for closure in 1, 2, 3:
        queue.put(closure)
    assert queue.worker_lost(0) == []
    assert queue.worker_ready(1) == [Run(3, 1), Run(1, 1)]
    assert queue.finished(3) == [Run(2, 1)]


def test_what_a_lost_worker_had_is_cancelled_if_there_is_an_error_to_report() -> None:
    queue = queue_with(0, 1, depth=2)
    for closure in 1, 2, 3:
        queue.put(closure)
    queue.failed(2, ValueError())
    assert queue.worker_lost(0) == [Abandon(1), Abandon(3)]
    assert queue.idle


def test_a_worker_that_leaves_ends_what_it_runs_and_gives_the_rest_back() -> None:
    queue = queue_with(0, depth=3)
    for closure in 1, 2, 3:
        queue.put(closure)
    assert queue.worker_leaves(0) == [Recall(2, 0), Recall(3, 0)]
    assert queue.put(4) == [], "it gets nothing more"
    assert queue.put_back(3) == queue.put_back(2) == []
    assert queue.finished(1) == [Dismiss(0)]
    assert queue.worker_ready(1) == [Run(2, 1), Run(3, 1), Run(4, 1)]


def test_a_worker_that_has_nothing_leaves_at_once() -> None:
    queue = queue_with(0)
    assert queue.worker_leaves(0) == [Dismiss(0)]
    assert queue.worker_leaves(7) == [Dismiss(7)], "also one that is not there"


def test_a_worker_that_is_lost_while_it_leaves_has_left() -> None:
    queue = queue_with(0, 1, depth=2)
    queue.put(1)
    assert queue.worker_leaves(0) == []
    assert queue.worker_lost(0) == [Dismiss(0), Run(1, 1)]


def test_a_worker_that_is_about_to_stop_gets_nothing_more_and_may_come_back() -> None:
    queue = queue_with(0, depth=2)
    queue.put(1)
    queue.put(2)
    assert queue.worker_retires(0) == []
    assert queue.put_back(2) == [], "nobody else is there"
    assert queue.worker_ready(1) == [Run(2, 1)]
    assert queue.finished(1) == [], "it is not dismissed"
    assert queue.worker_lost(0) == []
    assert queue.put(3) == [Run(3, 1)]
    assert queue.worker_ready(0) == []
    assert queue.put(4) == [Run(4, 0)]


def test_a_worker_that_is_about_to_stop_may_be_told_to_leave_for_good() -> None:
    queue = queue_with(0)
    queue.put(1)
    queue.worker_retires(0)
    assert queue.worker_leaves(0) == []
    assert queue.finished(1) == [Dismiss(0)]
    assert queue.worker_retires(0) == [], "it has left"


def test_what_a_worker_runs_that_stops_before_its_end_runs_on_others() -> None:
    queue = queue_with(0, 1)
    queue.put(1)
    queue.worker_retires(0)
    assert queue.worker_lost(0) == [Run(1, 1)]


def test_a_closure_runs_once_it_has_its_inputs() -> None:
    queue = queue_with(0, 1)
    queue.put(1)
    queue.put(2)
    assert queue.put(3, [1, 2]) == []
    assert queue.finished(1) == []
    assert queue.finished(2) == [Run(3, 0)]


def test_a_closure_fails_with_its_input_and_takes_others_along() -> None:
    queue = queue_with(0)
    queue.put(1)
    queue.put(2, [1])
    queue.put(3, [2])
    error = ValueError()
    assert queue.failed(1, error) == [FailDependent(2, error), FailDependent(3, error)]
    assert queue.idle


def test_the_first_error_is_reported_and_the_rest_of_the_queue_is_cancelled() -> None:
    queue = queue_with(0, 1)
    for closure in range(4):
        queue.put(closure)
    first, second = ValueError(), KeyError()
    assert queue.failed(0, first) == [Run(2, 0)], "others keep running"
    queue.failed(1, second)
    assert queue.begin_report() == [Cancel(2, 0), Cancel(3, 1)]
    assert queue.finished(2) == []
    assert queue.put_back(3) == [Abandon(3)]
    assert queue.end_report() == (first, [])
    assert queue.error is None


def test_nothing_is_begun_while_closures_are_told_to_end() -> None:
    queue = queue_with(0)
    for closure in 1, 2, 3:
        queue.put(closure)
    queue.failed(1, error := ValueError())
    queue.begin_report()
    assert queue.finished(2) == []
    assert queue.worker_ready(1) == []
    assert queue.end_report() == (error, [Abandon(3)])


def test_a_closure_that_comes_with_an_error_to_report_is_cancelled() -> None:
    queue = queue_with(0)
    queue.put(1)
    queue.failed(1, ValueError())
    assert queue.put(2) == [Abandon(2)]


def test_after_a_report_closures_run_again() -> None:
    queue = queue_with(0)
    queue.fault(ValueError())
    queue.begin_report()
    queue.end_report()
    assert queue.put(1) == [Run(1, 0)]


def test_what_waits_behind_another_is_recalled_for_a_worker_that_has_nothing() -> None:
    queue = queue_with(0, depth=2)
    queue.put(1)
    queue.put(2)
    assert queue.rebalance() == []
    queue.worker_ready(1)
    assert queue.rebalance() == [Recall(2, 0)]
    assert queue.rebalance() == [], "once"
    assert queue.put_back(2) == [Run(2, 1)]


def test_half_of_what_the_busiest_workers_have_is_recalled() -> None:
    queue = queue_with(0, 1, depth=6)
    for closure in range(7):
        queue.put(closure)
    queue.worker_ready(2)
    assert queue.rebalance() == [Recall(4, 0), Recall(6, 0)]
    queue.worker_ready(3)
    assert queue.rebalance() == [Recall(5, 1)], "nobody is asked twice"
    orders = [order for closure in (6, 4, 5) for order in queue.put_back(closure)]
    assert orders == [Run(6, 2), Run(4, 3), Run(5, 2)]


def test_a_recalled_closure_goes_before_those_that_came_later() -> None:
    queue = queue_with(0, depth=2)
    queue.put(1)
    queue.put(2)
    queue.worker_ready(1)
    queue.rebalance()
    for closure in 3, 4, 5:
        queue.put(closure)
    assert queue.put_back(2) == [Run(2, 0)]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_queue_is_idle_when_all_closures_have_ended(depth: int) -> None:
    queue = queue_with(0, depth=depth)
    assert queue.idle
    queue.put(1)
    queue.put(2, [1])
    assert not queue.idle
    queue.finished(1)
    queue.finished(2)
    assert queue.idle


def test_what_may_have_ended_a_worker_runs_alone() -> None:
    queue = queue_with(0, 1, depth=2, most_losses=3)
    for closure in 1, 2, 3, 4:
        queue.put(closure)
    assert not queue.worker_lost(0, crashed=True)
    assert queue.finished(2) == []
    assert queue.finished(4) == [Run(1, 1)]
    assert queue.put(5) == []
    assert queue.finished(1) == [Run(3, 1)]
    assert queue.finished(3) == [Run(5, 1)]
    assert queue.put(6) == [Run(6, 1)]


def test_a_closure_that_ends_one_worker_after_the_other_is_given_up() -> None:
    queue = queue_with(0, depth=2, most_losses=3)
    for closure in 1, 2:
        queue.put(closure)
    queue.put(3, [1])
    for _ in range(2):
        queue.worker_lost(0, crashed=True)
        assert queue.worker_ready(0)[0] in (Run(1, 0), Run(2, 0))
        if queue.closures_of(0) == {2: None}.keys():
            queue.finished(2)
    assert queue.worker_lost(0, crashed=True) == [GiveUp(1, (0, 0, 0))]
    error = RuntimeError()
    assert queue.given_up(1, error) == [FailDependent(3, error)]
    assert queue.error is error
    assert queue.idle


def test_a_worker_that_took_leave_was_not_ended_by_what_it_had() -> None:
    queue = queue_with(0, depth=2, most_losses=1)
    for closure in 1, 2:
        queue.put(closure)
    assert queue.worker_lost(0, crashed=False) == []
    assert queue.worker_ready(0) == [Run(1, 0), Run(2, 0)]
