"""The clients that a server tells of after they have ended without a word."""

from __future__ import annotations

from stratagem_proto.v1.session_pb2 import ROLE_WORKER, Task
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.state import LostClients


def session(index: int, job: str = "worker") -> Session:
    task = Task(job=job, index=index) if job else Task()
    return Session(bytes([index]) * 16, ROLE_WORKER, task, expires=0.0, doing="train.py:3 in step")


def test_a_client_is_told_of_until_it_comes_back() -> None:
    lost = LostClients()
    lost.add(session(1), "its lease ran out", 10.0)
    (told,) = lost.report(12.0)
    assert (told.task.index, told.why, told.seconds) == (1, "its lease ran out", 2.0)
    assert told.doing == "train.py:3 in step"
    lost.discard(session(1))
    assert not [*lost.report(12.0)]


def test_a_client_that_does_not_come_back_is_not_told_of_for_ever() -> None:
    lost = LostClients()
    lost.add(session(1), "its lease ran out", 10.0)
    assert not [*lost.report(1000.0)]


def test_clients_without_a_task_are_not_told_of() -> None:
    lost = LostClients()
    lost.add(session(1, job=""), "its lease ran out", 10.0)
    assert not [*lost.report(10.0)]


def test_of_many_clients_the_last_ones_are_told() -> None:
    lost = LostClients()
    for index in range(150):
        lost.add(session(index), "its lease ran out", 10.0)
    assert [one.task.index for one in lost.report(10.0)] == [*range(50, 150)]
