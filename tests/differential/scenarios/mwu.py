"""Who is who among the tasks of a training cluster."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario

CLUSTER = {
    "chief": ["c0:1"],
    "worker": ["w0:1", "w1:1"],
    "ps": ["p0:1", "p1:1"],
    "evaluator": ["e0:1"],
}
HEADLESS = {job: CLUSTER[job] for job in ("worker", "ps")}


@scenario("MWU-6", core=(298,))
def every_form_of_a_cluster_is_normalized(lib: Library) -> Any:
    spec = lib.distribute.ClusterSpec(CLUSTER)
    forms = (CLUSTER, spec, spec.as_cluster_def())
    return [lib.roles.normalize_cluster_spec(form).as_dict() for form in forms]


@scenario("MWU-6", core=(298,), says=("should be dict or",))
def another_kind_is_no_cluster(lib: Library) -> Any:
    return lib.roles.normalize_cluster_spec(["w0:1"])


@scenario("MWU-1", core=(299,))
def the_chief_is_the_chief_or_else_worker_0(lib: Library) -> Any:
    tasks = [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0), ("evaluator", 0)]
    with_chief = [lib.roles.is_chief(CLUSTER, *task) for task in tasks]
    return [with_chief, [lib.roles.is_chief(HEADLESS, *task) for task in tasks[1:]]]


@scenario("MWU-1", "MWU-7", core=(299,))
def a_chief_is_a_task_of_the_cluster(lib: Library) -> Any:
    tasks: list[Any] = [("chief", 0), ("worker", 2), ("master", 0)]
    says = ("not found in", "exceeds the maximum id", "Unrecognized task_type")
    return [
        attempt(lib.roles.is_chief, HEADLESS, *task, says=(fragment,))
        for task, fragment in zip(tasks, says, strict=True)
    ]


@scenario("MWU-2", core=(300,))
def workers_are_counted_with_the_chief(lib: Library) -> Any:
    counts = [lib.roles.worker_count(CLUSTER, job) for job in ("chief", "worker", "evaluator")]
    return [counts, lib.roles.worker_count(HEADLESS, "worker")]


@scenario("MWU-3", core=(300,))
def workers_are_numbered_after_the_chief(lib: Library) -> Any:
    tasks = [("chief", 0), ("worker", 1), ("evaluator", 0)]
    numbers = [lib.roles.id_in_cluster(CLUSTER, *task) for task in tasks]
    return [numbers, lib.roles.id_in_cluster(HEADLESS, "worker", 1)]


@scenario("MWU-2", "MWU-3", core=(300,))
def servers_are_neither_counted_nor_numbered(lib: Library) -> Any:
    counted = attempt(lib.roles.worker_count, CLUSTER, "ps", says=("Unexpected `task_type`",))
    numbered = attempt(lib.roles.id_in_cluster, CLUSTER, "ps", 0, says=("There is no id",))
    return [counted, numbered]


@scenario("MWU-2", "MWU-7", core=(300,))
def there_is_one_chief_at_most(lib: Library) -> Any:
    two = {**CLUSTER, "chief": ["c0:1", "c1:1"]}
    evaluators = {**CLUSTER, "evaluator": ["e0:1", "e1:1"]}
    return [
        attempt(lib.roles.worker_count, two, "worker", says=("at most one 'chief'",)),
        attempt(
            lib.roles.worker_count,
            evaluators,
            "worker",
            says=("at most one 'evaluator'",),
        ),
    ]


@scenario("MWU-4", core=(301,))
def the_chief_leads_collectives(lib: Library) -> Any:
    leader = lib.roles.collective_leader
    return [
        leader(CLUSTER, "worker", 0),
        leader(HEADLESS, "worker", 1),
        leader(CLUSTER, "evaluator", 0),
        leader({}, None, 0),
    ]


@scenario("MWU-5")
def a_server_leads_coordination(lib: Library) -> Any:
    clusters = [CLUSTER, {"chief": ["c0:1"]}, {"worker": ["w0:1"]}, {}]
    return [lib.roles.coordination_leader(cluster) for cluster in clusters]


@scenario("MWU-7", core=(301,))
def only_an_evaluator_may_be_missing(lib: Library) -> Any:
    cluster = {"chief": ["c0:1"], "ps": ["p0:1"]}
    return [
        lib.roles.is_chief(cluster, "evaluator", 0),
        attempt(lib.roles.is_chief, cluster, "worker", 0, says=("not found in",)),
    ]


@scenario("MWU-7", core=(301,))
def jobs_have_the_names_of_roles(lib: Library) -> Any:
    cluster = {"worker": ["w0:1"], "master": ["m0:1"]}
    return attempt(lib.roles.is_chief, cluster, "worker", 0, says=("Disallowed task type",))
