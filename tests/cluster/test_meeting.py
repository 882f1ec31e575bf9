"""How workers without servers find each other, also if some of them come late."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest

from stratagem._multi_worker import meeting
from stratagem._multi_worker.group import WorkerGroup
from stratagem._multi_worker.meeting import Meeting, WorkerPlace
from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_proto.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    UnavailableError,
)
from tests.deploy.processes.process_tree import python

pytestmark = pytest.mark.cluster


@pytest.fixture
def address() -> Iterator[str]:
    """A free address of this machine."""
    reserved = ReservedAddress()
    yield str(reserved)
    reserved.close()


def places(address: str, size: int = 2) -> list[WorkerPlace]:
    """Return the places of workers that meet at an address."""
    names = ("first", "second", "third")[:size]
    return [WorkerPlace(names, n, address, n == 0) for n in range(size)]


def test_a_worker_that_was_started_again_is_refused(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = places(address)
    for place in (first, second):
        Meeting(place, 5.0)
    # By this, processes know each other.
    monkeypatch.setattr(meeting, "_PROCESS_TOKEN", "of another process")
    message = "second has joined the workers .* before: .*start all workers anew"
    with pytest.raises(FailedPreconditionError, match=message):
        Meeting(second, 5.0)


def test_a_worker_that_gave_up_may_try_again(address: str) -> None:
    first, second = places(address)
    impatient = WorkerGroup(first, 0.2, [])
    for _ in range(2):
        with pytest.raises(DeadlineExceededError, match="for second: start all"):
            impatient.agree("The start", [])
    groups = [WorkerGroup(place, 30.0, []) for place in (first, second)]
    with ThreadPoolExecutor(2) as workers:
        assert list(workers.map(met, groups)) == [["hello", "hello"]] * 2


def met(group: WorkerGroup) -> list[str]:
    """Meet the other workers of a group, and return what all say."""
    return group.agree("The start", [], beside="hello")


def test_a_worker_that_gave_up_is_missing_to_those_who_come_later(address: str) -> None:
    for mine, other in (("first", "second"), ("second", "first")):
        place = places(address)[mine == "second"]
        message = f"^{mine} waited 0.2 s .* for {other}: start all"
        with pytest.raises(DeadlineExceededError, match=message):
            Meeting(place, 0.2).wait_for_all()


def test_those_who_still_wait_meet_whoever_gave_up_and_tries_again(address: str) -> None:
    first, second, third = places(address, 3)
    with ThreadPoolExecutor(3) as workers:
        with pytest.raises(DeadlineExceededError, match="third: start all"):
            impatient = Meeting(first, 1.0)
            patient = workers.submit(met, WorkerGroup(second, 30.0, []))
            impatient.wait_for_all()
        others = [workers.submit(met, WorkerGroup(place, 30.0, [])) for place in (first, third)]
        assert [each.result() for each in (patient, *others)] == [["hello"] * 3] * 3


CHIEF = """
import signal, sys
from tests.cluster.test_meeting import met, places
from stratagem._multi_worker.group import WorkerGroup
group = WorkerGroup(places(sys.argv[1], int(sys.argv[2]))[0], 60.0, [])
met(group)
signal.pause()
"""


def chief(address: str, workers: int) -> AbstractContextManager[subprocess.Popen[str]]:
    """Runs the first of some workers as a process, in a block."""
    return python("-c", CHIEF, address, str(workers), output=subprocess.DEVNULL)


def test_a_worker_meets_a_chief_that_was_started_again(address: str) -> None:
    second = places(address)[1]
    group = WorkerGroup(second, 60.0, [])
    with chief(address, 2):
        assert met(group) == ["hello", "hello"]
    with pytest.raises(UnavailableError, match="missing: first"):
        met(group)
    with chief(address, 2):
        assert met(WorkerGroup(second, 60.0, [])) == ["hello", "hello"]


def test_a_chief_that_ends_while_others_are_awaited_is_named(address: str) -> None:
    with chief(address, 3):
        waiting = Meeting(places(address, 3)[1], 60.0)
    with pytest.raises(UnavailableError, match=r"second waited .* and lost first, at .*: "):
        waiting.wait_for_all()
