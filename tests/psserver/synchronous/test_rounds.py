"""Synchronous steps: which contributions count, and the bytes of their sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stratagem_proto.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnstagedContributionError,
    VariableNotFoundError,
)
from stratagem_proto.v1.update_program_pb2 import (
    REDUCTION_MEAN,
    REDUCTION_SUM,
    Reduction,
)
from stratagem_psserver.optimization.gradients import Gradient
from stratagem_psserver.synchronous.contributions import MAX_WORKERS, Part, total
from stratagem_psserver.synchronous.rounds import MAX_GROUPS, MAX_STEPS, Rounds
from tests.psserver.synchronous.contributors import PART_BYTES, Cluster, mark, session
from tests.psserver.wire import sgd


def test_a_step_is_complete_when_all_have_committed() -> None:
    cluster = Cluster()
    cluster.stage(1)
    cluster.stage(0)
    assert cluster.commit(1) == []
    parts = cluster.commit(0)
    assert [part.contribution.worker for part in parts] == [0, 1]
    assert cluster.rounds.is_applied(mark()) is None
    cluster.rounds.finish(mark())
    assert cluster.rounds.is_applied(mark())


def test_what_is_staged_does_not_count_before_its_commit() -> None:
    cluster = Cluster()
    cluster.stage(0)
    cluster.stage(1)
    assert cluster.commit(0) == []
    assert "/job:worker/task:1" in cluster.rounds.missing(mark())
    assert "task:0" not in cluster.rounds.missing(mark())


def test_a_worker_that_never_came_is_missing_by_its_number() -> None:
    cluster = Cluster(3)
    cluster.stage(0)
    assert "worker 2" in cluster.rounds.missing(mark())
    assert "no worker" in Rounds().missing(mark())


def test_staging_again_replaces_what_is_not_committed() -> None:
    cluster = Cluster()
    cluster.stage(0)
    cluster.stage(0)
    assert cluster.budget.used == PART_BYTES
    cluster.commit(0)
    with pytest.raises(FailedPreconditionError, match="committed"):
        cluster.stage(0)


def test_nothing_can_be_committed_that_is_not_staged() -> None:
    cluster = Cluster()
    cluster.stage(0)
    with pytest.raises(FailedPreconditionError, match="task:1 has nothing staged"):
        cluster.commit(1)


@pytest.mark.parametrize("step", [1, 2])
def test_a_contribution_to_a_closed_step_is_late(step: int) -> None:
    cluster = Cluster()
    cluster.complete(2)
    with pytest.raises(FailedPreconditionError, match="go on with step 3"):
        cluster.stage(0, step)
    with pytest.raises(FailedPreconditionError, match="too late"):
        cluster.rounds.commit(b"another session", "/job:worker/task:0", mark(step))


def test_to_commit_again_what_counts_changes_nothing() -> None:
    cluster = Cluster()
    for worker in range(2):
        cluster.stage(worker)
    assert cluster.commit(0) == []
    assert cluster.commit(0) == []
    assert len(cluster.commit(1)) == 2
    assert cluster.commit(0) == cluster.commit(1) == []
    cluster.rounds.finish(mark())
    assert cluster.commit(0) == []


def test_parts_of_an_abandoned_step_are_dropped_once_a_later_one_is_applied() -> None:
    cluster = Cluster()
    cluster.stage(0, step=1)
    cluster.complete(step=2)
    assert cluster.budget.used == 0


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"num_workers": 3}, "number of workers"),
        ({"reduction": REDUCTION_MEAN}, "REDUCTION_MEAN against REDUCTION_SUM"),
    ],
)
def test_workers_that_differ_are_both_named(fields: dict[str, Any], says: str) -> None:
    cluster = Cluster()
    cluster.stage(0)
    with pytest.raises(InvalidArgumentError, match=says) as caught:
        cluster.rounds.stage(cluster.part(1, **fields))
    assert "task:0" in str(caught.value) and "task:1" in str(caught.value)


def test_a_hyperparameter_that_differs_is_named() -> None:
    cluster = Cluster()
    cluster.stage(0)
    with pytest.raises(InvalidArgumentError, match=r"'lr'.*: 0\.5 against 1\.0"):
        cluster.rounds.stage(cluster.part(1, program=sgd(lr=0.5)))


def test_workers_must_send_the_same_kind_of_gradient() -> None:
    cluster, value = Cluster(), torch.ones(2, 2)
    dense = {"w": Gradient("w", 0, value)}
    sparse = {"w": Gradient("w", 0, value, torch.tensor([0, 1]))}
    cluster.rounds.stage(cluster.part(0, gradients=dense))
    with pytest.raises(InvalidArgumentError, match="row-sparse against dense"):
        cluster.rounds.stage(cluster.part(1, gradients=sparse))


def test_gradients_must_have_one_shape_whoever_sent_them() -> None:
    cluster = Cluster(num_workers=3)
    gradients = [
        {"other": Gradient("other", 0, torch.ones(1))},
        {"w": Gradient("w", 0, torch.ones(2, 3))},
        {"w": Gradient("w", 0, torch.ones(3))},
    ]
    for worker in range(2):
        cluster.rounds.stage(cluster.part(worker, gradients=gradients[worker]))
    with pytest.raises(InvalidArgumentError, match=r"task:2 and .*task:1 .*\[3\] agai"):
        cluster.rounds.stage(cluster.part(2, gradients=gradients[2]))


@pytest.mark.parametrize(
    ("step", "fields"),
    [(0, {}), (1, {"worker": 2}), (1, {"reduction": 0})],
)
def test_a_contribution_must_be_possible(step: int, fields: dict[str, Any]) -> None:
    cluster = Cluster()
    with pytest.raises(InvalidArgumentError):
        cluster.rounds.stage(cluster.part(0, step, **fields))


def test_a_step_has_only_so_many_workers() -> None:
    cluster = Cluster(num_workers=2**32 - 1)
    with pytest.raises(InvalidArgumentError, match=f"at most {MAX_WORKERS}"):
        cluster.stage(0)


def test_only_so_many_steps_are_open_at_a_time() -> None:
    cluster = Cluster()
    for step in range(1, MAX_STEPS + 1):
        cluster.rounds.stage(cluster.part(0, step))
    with pytest.raises(FailedPreconditionError, match="the oldest being 1; wait"):
        cluster.stage(0, MAX_STEPS + 1)
    cluster.stage(1, MAX_STEPS)


def test_there_are_only_so_many_groups() -> None:
    rounds, part = Rounds(), Cluster().part(0)
    for number in range(MAX_GROUPS):
        part.contribution.step.group = f"SGD{number}"
        rounds.stage(part)
    part.contribution.step.group = "SGD"
    with pytest.raises(FailedPreconditionError, match="the same name in each step"):
        rounds.stage(part)


def test_of_many_missing_workers_the_first_are_named() -> None:
    cluster = Cluster(num_workers=1_000)
    cluster.stage(0)
    missing = cluster.rounds.missing(mark())
    assert "worker 9 and 990 more are missing" in missing


def test_two_tasks_cannot_be_the_same_worker() -> None:
    cluster = Cluster()
    cluster.stage(0)
    impostor = cluster.part(1, worker=0)
    with pytest.raises(FailedPreconditionError, match="both contribute as worker 0"):
        cluster.rounds.stage(impostor)


def test_waiting_for_a_worker_that_is_gone_fails_by_its_name() -> None:
    cluster = Cluster()
    cluster.complete(1)
    cluster.stage(0, step=2)
    cluster.stage(1, step=2)
    cluster.commit(0, step=2)
    groups = cluster.rounds.session_ended(session(1), "the lease of worker 1 ran out")
    assert groups == ["SGD"]
    with pytest.raises(AbortedError, match="the lease of worker 1 ran out before it contributed"):
        cluster.rounds.is_applied(mark(2))
    assert cluster.rounds.is_applied(mark(1))


def test_a_task_that_comes_back_can_complete_the_step() -> None:
    cluster = Cluster()
    cluster.stage(0)
    cluster.stage(1)
    cluster.commit(0)
    cluster.rounds.session_ended(session(1), "/job:worker/task:1 left")
    returned = b"a new session id"
    cluster.rounds.session_opened(returned, "/job:worker/task:1")
    assert cluster.rounds.is_applied(mark()) is None
    part = cluster.part(1)
    part.session_id = returned
    cluster.rounds.stage(part)
    assert len(cluster.rounds.commit(returned, part.task, mark())) == 2


def test_what_a_worker_left_uncommitted_counts_once_its_next_session_says_so() -> None:
    cluster = Cluster()
    cluster.stage(0)
    cluster.stage(1)
    cluster.commit(0)
    cluster.rounds.session_ended(session(1), "/job:worker/task:1 left")
    with pytest.raises(UnstagedContributionError, match=r"no earlier session of .*task:2"):
        cluster.rounds.commit_left("/job:worker/task:2", mark())
    assert [*cluster.rounds.committed()] == [("SGD", 0, 1)]
    assert len(cluster.rounds.commit_left("/job:worker/task:1", mark())) == 2
    assert sorted(cluster.rounds.committed()) == [("SGD", 0, 1), ("SGD", 1, 1)]


def test_what_a_worker_left_uncommitted_binds_nobody() -> None:
    cluster = Cluster()
    cluster.rounds.stage(cluster.part(0, reduction=REDUCTION_MEAN))
    cluster.rounds.session_ended(session(0), "/job:worker/task:0 left")
    cluster.stage(1)
    cluster.commit(1)


def test_a_program_waits_for_workers_that_left_with_the_last_one() -> None:
    cluster = Cluster()
    cluster.complete(1)
    for worker in 0, 1:
        cluster.rounds.session_ended(session(worker), "it left", left=True)
    cluster.rounds.session_opened(b"of the next program", "/job:worker/task:0")
    assert cluster.rounds.is_applied(mark(2)) is None


def test_a_step_that_cannot_be_applied_fails_for_those_who_wait() -> None:
    cluster = Cluster(1)
    cluster.stage(0)
    cluster.commit(0)
    cluster.rounds.finish(mark(), failure=VariableNotFoundError("variable 'w' is gone"))
    with pytest.raises(AbortedError, match="'w' is gone"):
        cluster.rounds.is_applied(mark())
    cluster.complete(2)
    assert cluster.rounds.is_applied(mark())


def summed(order: Sequence[int], values: Sequence[float], reduction: Reduction) -> torch.Tensor:
    cluster = Cluster(len(values))
    complete: list[Part] = []
    for worker in order:
        gradient = Gradient("w", 0, torch.tensor([values[worker]]))
        part = cluster.part(worker, gradients={"w": gradient}, reduction=reduction)
        cluster.rounds.stage(part)
        complete += cluster.commit(worker)
    (gradient,) = total(complete)
    return gradient.value


@given(
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=6),
    reduction=st.sampled_from([REDUCTION_SUM, REDUCTION_MEAN]),
    data=st.data(),
)
def test_the_sum_has_the_same_bytes_whatever_the_order_of_arrival(
    values: list[float], reduction: Reduction, data: st.DataObject
) -> None:
    workers = list(range(len(values)))
    order = data.draw(st.permutations(workers))
    expected = summed(workers, values, reduction)
    assert summed(order, values, reduction).numpy().tobytes() == (expected.numpy().tobytes())


def test_a_mean_divides_by_the_replicas_of_all_workers() -> None:
    cluster = Cluster()
    both = {"w": Gradient("w", 0, torch.tensor([9.0]))}
    parts = [
        cluster.part(0, gradients=both, replicas=2, reduction=REDUCTION_MEAN),
        cluster.part(1, gradients={}, replicas=1, reduction=REDUCTION_MEAN),
    ]
    (gradient,) = total(parts)
    assert gradient.value.tolist() == [3.0]


def test_row_sparse_gradients_are_joined_in_worker_order() -> None:
    cluster = Cluster()
    parts = [
        cluster.part(
            worker,
            gradients={"w": Gradient("w", 0, torch.tensor([[value]]), torch.tensor([row]))},
        )
        for worker, (row, value) in enumerate([(3, 1.0), (0, 2.0)])
    ]
    (gradient,) = total(parts)
    assert gradient.rows is not None
    assert gradient.rows.tolist() == [3, 0]
    assert gradient.value.tolist() == [[1.0], [2.0]]
