"""Synchronous steps whose workers are lost and may be started again."""

from __future__ import annotations

import pytest

from stratagem_proto.errors import AbortedError
from stratagem_psserver.synchronous.absences import Absences
from stratagem_psserver.synchronous.rounds import Rounds
from tests.psserver.synchronous.contributors import Cluster, mark, session

LOST = "/job:worker/task:1"


def losing(absences: Absences) -> Cluster:
    """A step to which one worker has contributed, and the other one was lost before it did."""
    cluster = Cluster()
    cluster.rounds = Rounds(absences)
    cluster.complete(1)
    cluster.stage(0, 2)
    cluster.commit(0, 2)
    cluster.rounds.session_ended(session(1), "its lease ran out")
    return cluster


def test_a_worker_that_was_lost_is_waited_for_until_its_time_is_over() -> None:
    absences = Absences(5.0)
    absences.lost(LOST, now=10.0)
    cluster = losing(absences)
    assert not absences.give_up(now=14.9)
    assert cluster.rounds.is_applied(mark(2)) is None
    assert absences.give_up(now=15.0)
    assert not absences.give_up(now=15.0)
    with pytest.raises(AbortedError, match=LOST):
        cluster.rounds.is_applied(mark(2))


def test_a_worker_that_does_not_come_back_is_not_waited_for() -> None:
    absences = Absences(5.0)
    absences.lost(LOST, now=10.0)
    absences.ended(LOST)
    with pytest.raises(AbortedError, match=LOST):
        losing(absences).rounds.is_applied(mark(2))


def test_nobody_is_waited_for_by_default() -> None:
    absences = Absences()
    absences.lost(LOST, now=10.0)
    with pytest.raises(AbortedError, match=LOST):
        losing(absences).rounds.is_applied(mark(2))


def test_a_worker_that_comes_back_completes_the_step() -> None:
    absences = Absences(5.0)
    absences.lost(LOST, now=10.0)
    cluster = losing(absences)
    part = cluster.returned(1, step=2)
    absences.ended(LOST)
    cluster.rounds.stage(part)
    assert len(cluster.rounds.commit(part.session_id, LOST, mark(2))) == 2
