"""Contributions that come again, or too late."""

from __future__ import annotations

import pytest

from stratagem_proto.errors import AbortedError, InvalidArgumentError
from tests.psserver.synchronous.contributors import PART_BYTES, Cluster, mark, session
from tests.psserver.wire import sgd


def test_what_a_lost_worker_has_committed_counts_once() -> None:
    cluster = Cluster(3)
    for worker in range(2):
        cluster.stage(worker)
        cluster.commit(worker)
        cluster.rounds.session_ended(session(worker), "it left")
    cluster.stage(2)
    returned = cluster.returned(1)
    cluster.rounds.stage(returned)
    assert cluster.rounds.is_late(returned.session_id, mark())
    parts = cluster.commit(2)
    assert [part.session_id for part in parts] == [session(each) for each in range(3)]


def test_a_contribution_sent_again_after_its_step_has_closed_is_dropped() -> None:
    cluster = Cluster()
    cluster.complete(1)
    cluster.rounds.session_ended(session(1), "/job:worker/task:1 left")
    returned = cluster.returned(1)
    cluster.rounds.stage(returned)
    assert cluster.rounds.is_late(returned.session_id, mark())
    assert cluster.budget.used == 0


def test_a_program_started_again_with_other_settings_contributes_anew() -> None:
    cluster = Cluster()
    cluster.stage(0)
    cluster.commit(0)
    cluster.rounds.session_ended(session(0), "/job:worker/task:0 left")
    returned = cluster.returned(0, program=sgd(lr=0.5))
    cluster.rounds.stage(returned)
    cluster.rounds.stage(cluster.part(1, program=sgd(lr=0.5)))
    assert cluster.commit(1) == []
    parts = cluster.rounds.commit(returned.session_id, returned.task, mark())
    assert parts[0] is returned


def test_a_step_closes_with_as_many_contributions_as_are_asked_for() -> None:
    cluster = Cluster(num_workers=3, replicas_to_aggregate=2)
    for worker in range(3):
        cluster.stage(worker)
    assert cluster.commit(2) == []
    parts = cluster.commit(0)
    assert [part.contribution.worker for part in parts] == [0, 2]
    assert cluster.rounds.is_late(session(1), mark())
    assert cluster.budget.used == 2 * PART_BYTES


def test_what_is_staged_for_a_step_that_closed_without_it_is_dropped() -> None:
    cluster = Cluster(num_workers=3, replicas_to_aggregate=2)
    for worker in range(2):
        cluster.stage(worker)
        for part in cluster.commit(worker):
            part.reservation.release()
    cluster.stage(2)
    assert cluster.rounds.is_late(session(2), mark())
    assert not cluster.rounds.is_late(session(1), mark())
    assert cluster.budget.used == 0


def test_a_lost_worker_is_missed_only_if_too_few_are_left() -> None:
    cluster = Cluster(num_workers=3, replicas_to_aggregate=2)
    for worker in range(3):
        cluster.stage(worker)
    cluster.rounds.session_ended(session(0), "/job:worker/task:0 left")
    assert cluster.rounds.is_applied(mark()) is None
    cluster.rounds.session_ended(session(1), "/job:worker/task:1 left")
    with pytest.raises(AbortedError, match="/job:worker/task:0 left before it contributed"):
        cluster.rounds.is_applied(mark())


def test_no_more_contributions_close_a_step_than_there_are_workers() -> None:
    cluster = Cluster(num_workers=2, replicas_to_aggregate=3)
    with pytest.raises(InvalidArgumentError, match="2 workers that 3 contributions"):
        cluster.stage(0)
