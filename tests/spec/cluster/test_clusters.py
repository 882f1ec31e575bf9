"""ClusterSpec and the roles of tasks."""

from __future__ import annotations

from typing import Any

import pytest

import stratagem
from stratagem import ClusterSpec
from stratagem._cluster import tasks as roles
from stratagem_proto.v1 import cluster_pb2 as pb

TRAINING = {
    "chief": ["chief:1"],
    "worker": ["w0:1", "w1:1"],
    "ps": ["p0:1", "p1:1"],
}
SPARSE = {"worker": {1: "w1:1", 4: "w4:1"}}


@pytest.mark.spec("CLS-1", "CLS-3", "CLS-9")
@pytest.mark.parametrize("form", ["dict", "message", "spec"])
def test_every_form_of_a_cluster_describes_the_same_one(form: str) -> None:
    spec = ClusterSpec(TRAINING)
    forms: dict[str, Any] = {
        "dict": {job: dict(enumerate(tasks)) for job, tasks in TRAINING.items()},
        "message": spec.as_cluster_def(),
        "spec": spec,
    }
    assert ClusterSpec(forms[form]) == spec
    assert spec == forms[form]
    assert spec.as_dict() == TRAINING


@pytest.mark.spec("CLS-1")
def test_indices_may_be_strings_as_in_json() -> None:
    assert ClusterSpec({"worker": {"1": "w1:1", "4": "w4:1"}}) == SPARSE  # type: ignore[dict-item]


@pytest.mark.spec("CLS-2", "CLS-4")
def test_a_job_with_gaps_is_shown_by_index() -> None:
    spec = ClusterSpec({**SPARSE, "ps": ["p0:1"], "idle": []})
    assert spec.as_dict() == {**SPARSE, "ps": ["p0:1"], "idle": {}}
    assert spec.job_tasks("worker") == [None, "w1:1", None, None, "w4:1"]
    assert spec.task_indices("worker") == [1, 4]
    assert spec.num_tasks("worker") == 2
    assert spec.job_tasks("idle") == []


@pytest.mark.spec("CLS-5", "CLS-6")
def test_unknown_jobs_and_indices_are_named_with_the_known_ones() -> None:
    spec = ClusterSpec(SPARSE)
    with pytest.raises(ValueError, match=r"No such job in cluster: 'ps'.*\['worker'\]"):
        spec.num_tasks("ps")
    with pytest.raises(ValueError, match=r"No task with index 2 .*\[1, 4\]"):
        spec.task_address("worker", 2)


@pytest.mark.spec("CLS-7")
@pytest.mark.parametrize(
    "cluster",
    [
        ["w0:1"],
        {"worker": "w0:1"},
        {0: ["w0:1"]},
        {"worker": {"first": "w0:1"}},
        {"worker": [1]},
    ],
)
def test_other_types_are_refused(cluster: Any) -> None:
    with pytest.raises(TypeError):
        ClusterSpec(cluster)
    assert ClusterSpec({}) != cluster


def test_a_negative_index_is_refused() -> None:
    with pytest.raises(stratagem.InvalidArgumentError, match="negative"):
        ClusterSpec({"worker": {-1: "w:1"}})


@pytest.mark.spec("CLS-8")
def test_a_cluster_is_true_if_it_has_jobs() -> None:
    assert ClusterSpec({"worker": []})
    assert not ClusterSpec({})
    assert not ClusterSpec(pb.ClusterDef())


@pytest.mark.spec("CLS-10")
def test_the_text_of_a_cluster_has_its_jobs_sorted() -> None:
    spec = ClusterSpec({"worker": ["w0:1"], "ps": {3: "p3:1"}})
    assert str(spec) == "ClusterSpec({'ps': {3: 'p3:1'}, 'worker': ['w0:1']})"


def test_a_changed_answer_leaves_the_cluster_alone() -> None:
    spec = ClusterSpec(SPARSE)
    tasks = spec.as_dict()["worker"]
    assert isinstance(tasks, dict)
    tasks.clear()
    assert spec == SPARSE


@pytest.mark.spec("MWU-1")
@pytest.mark.parametrize(
    ("task_type", "task_id", "with_chief", "alone"),
    [
        ("chief", 0, True, None),
        ("worker", 0, False, True),
        ("worker", 1, False, False),
        ("evaluator", 0, True, True),
        ("ps", 0, False, False),
    ],
)
def test_the_chief_is_the_chief_or_else_the_first_worker(
    task_type: str, task_id: int, with_chief: bool, alone: bool | None
) -> None:
    assert roles.is_chief(TRAINING, task_type, task_id) is with_chief
    if alone is not None:
        headless = {job: TRAINING[job] for job in ("worker", "ps")}
        assert roles.is_chief(headless, task_type, task_id) is alone


@pytest.mark.spec("MWU-2", "MWU-3")
def test_workers_are_counted_and_numbered_after_the_chief() -> None:
    assert roles.worker_count(TRAINING, "worker") == 3
    assert roles.worker_count(TRAINING, "chief") == 3
    assert roles.id_in_cluster(TRAINING, "chief", 0) == 0
    assert roles.id_in_cluster(TRAINING, "worker", 1) == 2
    assert roles.id_in_cluster({"worker": ["a:1", "b:1"]}, "worker", 1) == 1


def test_workers_may_leave_gaps_between_their_numbers() -> None:
    cluster: Any = {"chief": ["c:1"], "worker": {0: "a:1", 5: "b:1"}}
    assert roles.worker_count(cluster, "worker") == 3
    assert roles.id_in_cluster(cluster, "worker", 5) == 6
    with pytest.raises(ValueError, match="`task_id` 4 exceeds the maximum id"):
        roles.validated(cluster, "worker", 4)


@pytest.mark.spec("MWU-2", "MWU-3")
def test_evaluators_are_a_cluster_of_their_own() -> None:
    cluster = {**TRAINING, "evaluator": ["e:1"]}
    assert roles.worker_count(cluster, "evaluator") == 1
    assert roles.id_in_cluster(cluster, "evaluator", 0) == 0


@pytest.mark.spec("MWU-2", "MWU-3")
def test_parameter_servers_are_not_workers() -> None:
    with pytest.raises(ValueError, match="Unexpected `task_type` 'ps'"):
        roles.worker_count(TRAINING, "ps")
    with pytest.raises(ValueError, match="no id for task_type 'ps'"):
        roles.id_in_cluster(TRAINING, "ps", 0)


@pytest.mark.spec("MWU-4")
@pytest.mark.parametrize(
    ("cluster", "leader"),
    [
        (TRAINING, "/job:chief/replica:0/task:0"),
        ({"worker": ["w:1"]}, "/job:worker/replica:0/task:0"),
        ({}, ""),
    ],
)
def test_the_chief_leads_the_workers(cluster: Any, leader: str) -> None:
    assert roles.collective_leader(cluster, None, None) == leader


@pytest.mark.spec("MWU-5")
def test_a_parameter_server_is_reached_by_all() -> None:
    assert roles.coordination_leader(TRAINING) == "/job:ps/replica:0/task:0"
    assert roles.coordination_leader({"chief": ["c:1"]}).startswith("/job:chief")
    assert roles.coordination_leader({}) == ""


@pytest.mark.spec("MWU-6", "MWU-7")
@pytest.mark.parametrize(
    ("cluster", "task", "message"),
    [
        (
            {"master": ["m:1"]},
            (None, None),
            "Disallowed task type found in cluster spec: 'master'",
        ),
        ({"chief": ["a:1", "b:1"]}, (None, None), "at most one 'chief'"),
        ({"evaluator": ["a:1", "b:1"]}, (None, None), "at most one 'evaluator'"),
        (TRAINING, ("master", 0), "Unrecognized task_type 'master'"),
        ({"worker": ["a:1"]}, ("ps", 0), "'ps' not found in"),
        (TRAINING, ("worker", 2), "exceeds the maximum id"),
        ("worker:1", (None, None), "should be dict or"),
    ],
)
def test_what_is_no_training_cluster_is_refused(
    cluster: Any, task: tuple[Any, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        roles.validated(cluster, *task)
