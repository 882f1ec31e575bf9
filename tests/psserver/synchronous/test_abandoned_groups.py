"""Synchronous steps after all of their workers have gone."""

from __future__ import annotations

import json

import pytest

from stratagem_proto.errors import (
    AbortedError,
    ResourceExhaustedError,
    UnstagedContributionError,
)
from stratagem_psserver.limits import Budget
from tests.psserver.synchronous.contributors import (
    BUDGET,
    PART_BYTES,
    Cluster,
    mark,
    session,
)


def half_done() -> Cluster:
    """Two workers, of which the first has committed to a step."""
    cluster = Cluster()
    cluster.budget = Budget(BUDGET, cluster.rounds.reclaim)
    cluster.complete(1)
    cluster.stage(0, 2)
    cluster.stage(1, 2)
    cluster.commit(0, 2)
    return cluster


def end(cluster: Cluster, worker: int, left: bool) -> None:
    cluster.rounds.session_ended(session(worker), "it went", left)


def come_back(cluster: Cluster) -> None:
    """Both workers are there again, and have staged the step once more."""
    for worker in range(2):
        cluster.rounds.session_opened(session(worker), f"/job:worker/task:{worker}")
        cluster.stage(worker, 2)


def test_when_all_workers_have_left_nothing_is_kept() -> None:
    cluster = half_done()
    for worker in range(2):
        assert cluster.budget.used > 0
        end(cluster, worker, left=True)
    assert cluster.budget.used == 0


def test_what_a_worker_that_left_has_committed_is_there_for_the_others() -> None:
    cluster = half_done()
    end(cluster, 0, left=True)
    assert len(cluster.commit(1, 2)) == 2


def test_what_was_dropped_is_not_waited_for_by_those_who_have_to_repeat_it() -> None:
    """All wait until the first one has committed again, and nobody repeats while it waits."""
    cluster = half_done()
    for worker in range(2):
        end(cluster, worker, left=True)
    assert cluster.rounds.may_commit_left("/job:worker/task:1", mark(2))
    with pytest.raises(UnstagedContributionError):
        cluster.rounds.commit_left("/job:worker/task:1", mark(2))
    come_back(cluster)
    assert cluster.rounds.may_commit(session(1), mark(2)) is None


def test_a_worker_that_was_never_there_may_still_come() -> None:
    cluster = Cluster()
    cluster.stage(0)
    cluster.commit(0)
    end(cluster, 0, left=True)
    cluster.stage(1)
    assert len(cluster.commit(1)) == 2


def test_workers_whose_leases_ran_out_go_on_with_what_they_had_committed() -> None:
    cluster = half_done()
    for worker in range(2):
        end(cluster, worker, left=False)
    assert cluster.budget.used == 2 * PART_BYTES
    for worker in range(2):
        cluster.rounds.session_opened(session(worker), f"/job:worker/task:{worker}")
    cluster.stage(1, 2)
    assert len(cluster.commit(1, 2)) == 2


@pytest.mark.parametrize("gone", [1, 2])
def test_it_makes_room_for_others_once_all_are_gone(gone: int) -> None:
    cluster = half_done()
    for worker in range(gone):
        end(cluster, worker, left=worker == 0)
    if gone == 1:
        with pytest.raises(ResourceExhaustedError):
            cluster.budget.reserve(BUDGET, "a read")
    else:
        cluster.budget.reserve(BUDGET, "a read")
        assert cluster.rounds.missing(mark(2)).count("task") == 2


@pytest.mark.parametrize("left", [False, True])
def test_whose_contribution_was_dropped_commits_before_the_others(left: bool) -> None:
    cluster = half_done()
    for worker in range(2):
        end(cluster, worker, left)
    cluster.budget.reserve(BUDGET, "a read").release()
    come_back(cluster)
    assert cluster.rounds.may_commit(session(1), mark(2)) is None
    assert cluster.rounds.may_commit(session(0), mark(2))
    cluster.commit(0, 2)
    assert cluster.rounds.may_commit(session(1), mark(2))
    assert len(cluster.commit(1, 2)) == 2


def test_a_server_that_was_restarted_knows_who_has_to_commit_again() -> None:
    cluster = half_done()
    for worker in range(2):
        end(cluster, worker, left=True)
    facts = json.loads(json.dumps(cluster.rounds.facts()))
    cluster.rounds.restore_groups(facts)
    cluster.rounds.complete_groups(facts)
    come_back(cluster)
    assert cluster.rounds.may_commit(session(1), mark(2)) is None


def test_nobody_waits_for_a_worker_that_the_next_program_does_not_have() -> None:
    cluster = Cluster(num_workers=2)
    cluster.stage(0)
    cluster.stage(1)
    cluster.commit(1)
    for worker in range(2):
        end(cluster, worker, left=True)
    cluster.num_workers = 1
    cluster.stage(0)
    assert cluster.rounds.may_commit(session(0), mark())


def test_with_backup_workers_nobody_waits() -> None:
    cluster = Cluster(num_workers=3, replicas_to_aggregate=2)
    for worker in range(3):
        cluster.stage(worker)
    cluster.commit(0)
    for worker in range(3):
        end(cluster, worker, left=True)
    cluster.stage(1)
    assert cluster.rounds.may_commit(session(1), mark())


def test_who_waits_for_a_step_is_told_that_what_it_had_committed_was_dropped() -> None:
    cluster = half_done()
    for worker in range(2):
        end(cluster, worker, left=False)
    cluster.budget.reserve(BUDGET, "a read").release()
    for worker in range(2):
        cluster.rounds.session_opened(session(worker), f"/job:worker/task:{worker}")
    with pytest.raises(AbortedError, match="was dropped"):
        cluster.rounds.is_applied(mark(2), session(0))
    assert cluster.rounds.is_applied(mark(2), session(1)) is None
