"""Synchronous steps whose workers are lost and may be started again."""

from __future__ import annotations

import pytest

from stratagem_proto.errors import AbortedError
from stratagem_psserver.synchronous.rounds import Absences, Rounds
from tests.psserver.synchronous.contributors import Cluster, mark, session

LOST = "/job:worker/task:1"


def losing(waits: bool = True, left: bool = False) -> Cluster:
    """A step to which one worker has contributed, and the other one was lost before it did."""
    cluster = Cluster()
    cluster.rounds = Rounds(waits)
    cluster.complete(1)
    cluster.stage(0, 2)
    cluster.commit(0, 2)
    cluster.rounds.session_ended(session(1), f"the lease of {LOST} ran out", left)
    return cluster


def require_aborted(cluster: Cluster) -> None:
    with pytest.raises(AbortedError, match=LOST):
        cluster.rounds.is_applied(mark(2))


def test_a_worker_that_was_lost_is_waited_for_until_it_is_given_up() -> None:
    cluster = losing()
    assert cluster.rounds.is_applied(mark(2)) is None
    assert [*cluster.rounds.absent()] == [LOST]
    cluster.rounds.give_up([LOST])
    assert not cluster.rounds.absent()
    require_aborted(cluster)


def test_a_worker_that_does_not_come_back_is_not_waited_for() -> None:
    cluster = losing(left=True)
    assert not cluster.rounds.absent()
    require_aborted(cluster)


def test_nobody_is_waited_for_by_default() -> None:
    cluster = losing(waits=False)
    assert not cluster.rounds.absent()
    require_aborted(cluster)


@pytest.mark.parametrize("given_up", [False, True])
def test_a_worker_that_comes_back_completes_the_step(given_up: bool) -> None:
    cluster = losing()
    if given_up:
        cluster.rounds.give_up([LOST])
    part = cluster.returned(1, step=2)
    assert not cluster.rounds.absent()
    assert cluster.rounds.is_applied(mark(2)) is None
    cluster.rounds.stage(part)
    assert len(cluster.rounds.commit(part.session_id, LOST, mark(2))) == 2


def test_a_worker_that_is_lost_again_is_waited_for_again() -> None:
    cluster = losing()
    cluster.rounds.give_up([LOST])
    cluster.rounds.session_opened(session(1), LOST)
    cluster.rounds.session_ended(session(1), "its lease ran out")
    assert [*cluster.rounds.absent()] == [LOST]
    assert cluster.rounds.is_applied(mark(2)) is None


def test_the_time_of_each_absence_is_its_own() -> None:
    absences = Absences(5.0)
    assert not absences.overdue(["a"], now=10.0)
    assert not absences.overdue(["a", "b"], now=14.0)
    assert absences.overdue(["a", "b"], now=15.0) == ["a"]
    assert absences.overdue(["b"], now=19.0) == ["b"]


def test_the_time_of_a_worker_that_was_back_begins_anew() -> None:
    absences = Absences(5.0)
    absences.overdue(["a"], now=10.0)
    absences.overdue([], now=12.0)
    assert not absences.overdue(["a"], now=15.0)
    assert absences.overdue(["a"], now=20.0) == ["a"]
