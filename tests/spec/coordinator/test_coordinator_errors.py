"""What scheduled functions raise, and when it is reported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from stratagem import (
    AlreadyExistsError,
    CancelledError,
    ClosureInputError,
    UnavailableError,
    WorkerFunctionError,
)
from stratagem.coordinator import ClusterCoordinator
from tests.client.coordinator.coordination import coordinating
from tests.client.coordinator.here import Gate, Journal
from tests.waiting import eventually


def fail(message: str = "broken") -> None:
    raise ValueError(message)


def fail_after(gate: Gate, message: str) -> None:
    gate.pass_through()
    raise ValueError(message)


@dataclass(frozen=True)
class Frozen(Exception):
    """Lets nobody set an attribute."""

    why: str

    def __reduce__(self) -> Any:
        return Frozen, (self.why,)


class Mute(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("mute")


class Bare(UnavailableError):
    """Lacks what its class sees to."""

    def __init__(self) -> None: ...


class Own(KeyError):
    """A program's own."""


@pytest.fixture
def trusting() -> Iterator[ClusterCoordinator]:
    """A coordinator that unpickles what its workers send."""
    with coordinating(trust_workers=True) as coordination:
        yield coordination.coordinator


def fail_with(journal: Journal, kind: type[Exception], *args: str) -> None:
    journal.write(kind)
    raise kind(*args)


def wait_for_error(coordinator: ClusterCoordinator) -> None:
    eventually(lambda: coordinator._dispatch._queue.error is not None)


@pytest.mark.spec("ERR-1")
def test_the_call_that_schedules_a_function_does_not_raise_its_error(
    coordinator: ClusterCoordinator,
) -> None:
    for _ in range(20):  # a worker may answer before the call returns
        coordinator.schedule(fail)
        with pytest.raises(ValueError, match="broken"):
            coordinator.join()


@pytest.mark.spec("ERR-1")
def test_an_error_shows_where_it_was_raised(coordinator: ClusterCoordinator) -> None:
    coordinator.schedule(fail)
    with pytest.raises(ValueError) as caught:
        coordinator.join()
    cause = str(caught.value.__cause__)
    assert "fail on /job:worker/task:" in cause
    assert "test_coordinator_errors.py" in cause
    assert "raise ValueError(message)" in cause


@pytest.mark.spec("ERR-1")
@pytest.mark.parametrize("kind", [Frozen, Mute])
def test_errors_are_raised_whatever_their_classes_do(
    trusting: ClusterCoordinator, kind: type[Exception]
) -> None:
    coordinator = trusting
    journal, args = Journal(), ("why",) if kind is Frozen else ()
    value = coordinator.schedule(fail_with, args=(journal, kind, *args))
    wait_for_error(coordinator)
    for waits in (coordinator.join, value.fetch):
        with pytest.raises(kind) as caught:
            waits()
        assert "fail_with on /job:worker/task:" in str(caught.value.__cause__)
    assert journal.entries == [kind]


@pytest.mark.spec("ERR-1")
def test_a_function_ends_whose_error_cannot_be_looked_at(trusting: ClusterCoordinator) -> None:
    coordinator, journal = trusting, Journal()
    coordinator.schedule(fail_with, args=(journal, Bare))
    wait_for_error(coordinator)
    with pytest.raises(AttributeError):
        coordinator.join()
    assert journal.entries == [Bare]


@pytest.mark.spec("ERR-1")
@pytest.mark.parametrize("kind", [Own, Frozen, Mute, Bare])
def test_of_an_error_of_another_class_the_words_and_the_traceback_arrive(
    coordinator: ClusterCoordinator, kind: type[Exception]
) -> None:
    journal, args = Journal(), ("why",) if kind in (Own, Frozen) else ()
    value = coordinator.schedule(fail_with, args=(journal, kind, *args))
    wait_for_error(coordinator)
    for waits in (coordinator.join, value.fetch):
        with pytest.raises(WorkerFunctionError, match=f"raised {kind.__name__}, ") as caught:
            waits()
        assert caught.value.class_name == kind.__name__
        assert "raise kind(*args)" in caught.value.traceback
        assert "fail_with on /job:worker/task:" in str(caught.value.__cause__)
    assert journal.entries == [kind]


@pytest.mark.spec("ERR-1")
@pytest.mark.parametrize(
    "error",
    [
        KeyError("a", 1),
        FileNotFoundError(2, "No such file", "here"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "wrong"),
        AlreadyExistsError("twice", variable="v", task="/job:ps/task:0"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_python_and_of_stratagem_arrive_as_they_are(
    coordinator: ClusterCoordinator, error: Exception
) -> None:
    def raises() -> None:
        raise error

    coordinator.schedule(raises)
    with pytest.raises(type(error)) as caught:
        coordinator.join()
    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error)
    for name in ("args", "filename", "variable", "task"):
        assert getattr(caught.value, name, None) == getattr(error, name, None)


@pytest.mark.spec("ERR-2", "ERR-8")
def test_each_value_raises_its_own_error(coordinator: ClusterCoordinator) -> None:
    gate = Gate()
    values = [coordinator.schedule(fail_after, args=(gate, message)) for message in ("one", "two")]
    gate.wait_for(2)
    gate.open()
    for value, message in zip(values, ("one", "two"), strict=True):
        for _ in range(2):
            with pytest.raises(ValueError, match=message):
                value.fetch()
    with pytest.raises(ValueError, match=r"one|two"):
        coordinator.join()
    coordinator.join()


@pytest.mark.spec("ERR-3")
def test_other_functions_go_on(coordinator: ClusterCoordinator) -> None:
    failing, running, journal = Gate(), Gate(), Journal()
    coordinator.schedule(fail_after, args=(failing, "broken"))
    coordinator.schedule(running.pass_through)
    for number in range(4):
        coordinator.schedule(journal.write, args=(number,))
    failing.open()
    wait_for_error(coordinator)
    eventually(lambda: len(journal.entries) == 4)
    running.open()
    with pytest.raises(ValueError, match="broken"):
        coordinator.join()


@pytest.mark.spec("ERR-4", "ERR-7")
@pytest.mark.parametrize("report", ["join", "done"])
def test_reporting_an_error_cancels_all_functions(
    coordinator: ClusterCoordinator, report: str
) -> None:
    gate = Gate()
    running = [coordinator.schedule(gate.pass_through) for _ in range(2)]
    gate.wait_for(2)
    waiting = [coordinator.schedule(gate.pass_through) for _ in range(4)]
    coordinator._dispatch._queue.fault(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        getattr(coordinator, report)()
    for value in [*running, *waiting]:
        with pytest.raises(CancelledError, match=r"is cancelled\. Please reschedule"):
            value.fetch()


@pytest.mark.spec("ERR-7")
def test_a_function_that_ends_before_it_is_cancelled_keeps_its_value(
    coordinator: ClusterCoordinator,
) -> None:
    value = coordinator.schedule(lambda: torch.ones(()))
    assert value.fetch() == 1
    coordinator.schedule(fail)
    with pytest.raises(ValueError, match="broken"):
        coordinator.join()
    assert value.fetch() == 1


@pytest.mark.spec("ERR-5")
def test_the_function_whose_schedule_reports_is_not_run(
    coordinator: ClusterCoordinator,
) -> None:
    journal = Journal()
    coordinator.schedule(fail)
    wait_for_error(coordinator)
    with pytest.raises(ValueError, match="broken"):
        coordinator.schedule(journal.write, args=("ran",))
    coordinator.join()
    assert journal.entries == []


@pytest.mark.spec("ERR-6")
def test_iterators_survive_a_report(coordinator: ClusterCoordinator) -> None:
    numbers = iter(coordinator.create_per_worker_dataset(list(range(100))))
    seen = [coordinator.schedule(next, args=(numbers,)) for _ in range(4)]
    coordinator.join()
    coordinator.schedule(fail)
    with pytest.raises(ValueError, match="broken"):
        coordinator.join()
    gate = Gate()

    def both(numbers: Any) -> Any:
        gate.pass_through()
        return next(numbers)

    after = [coordinator.schedule(both, args=(numbers,)) for _ in range(2)]
    gate.wait_for(2)
    gate.open()
    assert sum(coordinator.fetch(after)) == len(seen)


@pytest.mark.spec("ERR-9")
def test_a_dataset_that_cannot_be_made_fails_what_uses_it(
    coordinator: ClusterCoordinator,
) -> None:
    def broken() -> list[int]:
        raise KeyError("no such file")

    numbers = iter(coordinator.create_per_worker_dataset(broken))
    assert coordinator.schedule(lambda: 1).fetch() == 1
    value = coordinator.schedule(next, args=(numbers,))
    with pytest.raises(ClosureInputError, match="no such file") as caught:
        coordinator.join()
    assert isinstance(caught.value.original_exception, KeyError)
    with pytest.raises(ClosureInputError, match="no such file"):
        value.fetch()
    assert coordinator.schedule(lambda: 1).fetch() == 1


@pytest.mark.spec("ERR-9")
def test_a_failed_value_fails_what_takes_it(coordinator: ClusterCoordinator) -> None:
    gate = Gate()
    value = coordinator.schedule(fail_after, args=(gate, "broken"))
    before = coordinator.schedule(lambda x: x, args=(value,))
    gate.open()
    with pytest.raises(ValueError, match="broken"):
        coordinator.join()
    with pytest.raises(ClosureInputError, match="ValueError: broken"):
        before.fetch()
    with pytest.raises(ClosureInputError, match="ValueError: broken") as caught:
        coordinator.schedule(lambda x: x, args=(value,))
    assert isinstance(caught.value.original_exception, ValueError)
    coordinator.join()


class LoadedNowhere:
    """Can be pickled, but not loaded."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


@pytest.mark.spec("COO-16")
def test_what_a_worker_cannot_load_fails_the_function(
    coordinator: ClusterCoordinator,
) -> None:
    captured = LoadedNowhere()
    value = coordinator.schedule(lambda: captured)
    for report in coordinator.join, value.fetch:
        with pytest.raises(ClosureInputError, match="no number") as caught:
            report()
        assert isinstance(caught.value.original_exception, ValueError)
