"""Synchronous steps after all of their workers have gone."""

from __future__ import annotations

import pytest

from stratagem_proto.errors import ResourceExhaustedError
from stratagem_psserver.limits.budget import Budget
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
    assert cluster.budget.used == PART_BYTES
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
