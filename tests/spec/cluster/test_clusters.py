"""ClusterSpec and the roles of tasks."""

from __future__ import annotations

from typing import Any

import pytest

import stratagem
from stratagem import ClusterSpec
from stratagem._cluster import tasks as roles

SPARSE = {"worker": {1: "w1:1", 4: "w4:1"}}


@pytest.mark.spec("CLS-1")
def test_indices_may_be_strings_as_in_json() -> None:
    assert ClusterSpec({"worker": {"1": "w1:1", "4": "w4:1"}}) == SPARSE  # type: ignore[dict-item]


@pytest.mark.spec("CLS-5", "CLS-6")
def test_unknown_jobs_and_indices_are_named_with_the_known_ones() -> None:
    spec = ClusterSpec(SPARSE)
    with pytest.raises(ValueError, match=r"No such job in cluster: 'ps'.*\['worker'\]"):
        spec.num_tasks("ps")
    with pytest.raises(ValueError, match=r"No task with index 2 .*\[1, 4\]"):
        spec.task_address("worker", 2)
    with pytest.raises(ValueError, match="without TF_CONFIG, which is the only worker"):
        ClusterSpec({}).num_tasks("worker")


def test_a_negative_index_is_refused() -> None:
    with pytest.raises(stratagem.InvalidArgumentError, match="negative"):
        ClusterSpec({"worker": {-1: "w:1"}})


def test_a_changed_answer_leaves_the_cluster_alone() -> None:
    spec = ClusterSpec(SPARSE)
    tasks = spec.as_dict()["worker"]
    assert isinstance(tasks, dict)
    tasks.clear()
    assert spec == SPARSE


def test_workers_may_leave_gaps_between_their_numbers() -> None:
    cluster: Any = {"chief": ["c:1"], "worker": {0: "a:1", 5: "b:1"}}
    assert roles.worker_count(cluster, "worker") == 3
    assert roles.id_in_cluster(cluster, "worker", 5) == 6
    with pytest.raises(ValueError, match="`task_id` 4 exceeds the maximum id"):
        roles.validated(cluster, "worker", 4)
