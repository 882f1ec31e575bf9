"""ClusterSpec: forms, accessors, comparison and text."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario

JOBS = {"ps": ["p0:1", "p1:1"], "worker": ["w0:1", "w1:1", "w2:1"]}
SPARSE = {"ps": {0: "p0:1", 2: "p2:1"}, "worker": ["w0:1"], "idle": []}


@scenario("CLS-10", core=(292,))
def the_text_has_the_jobs_sorted(lib: Library) -> Any:
    spec = lib.distribute.ClusterSpec
    return [str(spec(JOBS)), repr(spec(SPARSE)), str(spec({}))]


@scenario("CLS-1", "CLS-2", "CLS-3", core=(293,))
def every_form_describes_the_same_cluster(lib: Library) -> Any:
    spec = lib.distribute.ClusterSpec(SPARSE)
    message = spec.as_cluster_def()
    forms = [lib.distribute.ClusterSpec(form) for form in (SPARSE, spec, message)]
    tasks = {job.name: dict(job.tasks) for job in message.job}
    return [[form.as_dict() for form in forms], tasks]


@scenario("CLS-1", "CLS-2", core=(293,))
def a_job_may_be_without_tasks(lib: Library) -> Any:
    spec = lib.distribute.ClusterSpec({"worker": [], "ps": {}})
    return [spec.as_dict(), spec.num_tasks("worker"), bool(spec)]


@scenario("CLS-4", core=(294,))
def jobs_and_tasks_are_listed(lib: Library) -> Any:
    spec = lib.distribute.ClusterSpec(SPARSE)
    lists = [[spec.num_tasks(job), spec.task_indices(job)] for job in spec.jobs]
    return [spec.jobs, lists, spec.job_tasks("ps"), spec.task_address("ps", 2)]


@scenario("CLS-5", "CLS-6", core=(294,))
def unknown_jobs_and_tasks_are_refused(lib: Library) -> Any:
    spec = lib.distribute.ClusterSpec(SPARSE)
    says = ("No such job in cluster",)
    calls = (spec.num_tasks, spec.task_indices, spec.job_tasks)
    unknown_jobs = [attempt(call, "chief", says=says) for call in calls]
    return [
        unknown_jobs,
        attempt(spec.task_address, "chief", 0, says=says),
        attempt(spec.task_address, "ps", 1, says=("No task with index 1",)),
    ]


@scenario("CLS-7")
def other_types_are_refused(lib: Library) -> Any:
    wrong: list[Any] = [
        ["w0:1"],
        {"worker": "w0:1"},
        {0: ["w0:1"]},
        {"worker": {"0": "w0:1"}},
        {"worker": [1]},
        {"worker": {0: 1}},
    ]
    return [attempt(lib.distribute.ClusterSpec, cluster) for cluster in wrong]


@scenario("CLS-8", "CLS-9", core=(295,))
def clusters_compare_by_their_tasks(lib: Library) -> Any:
    spec = lib.distribute.ClusterSpec
    dense, by_index = spec(JOBS), {job: dict(enumerate(JOBS[job])) for job in JOBS}
    others = [spec(by_index), by_index, spec(SPARSE), spec({}), {}]
    compared = [[dense == other, dense != other] for other in others]
    return [bool(dense), bool(spec({})), compared]
