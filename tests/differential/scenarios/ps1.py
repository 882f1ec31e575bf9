"""A strategy with parameter servers, before anything is on them."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario

CLUSTER = {
    "worker": ["w0:1", "w1:1"],
    "ps": ["p0:1", "p1:1"],
}


def strategy_of(lib: Library, cluster: Any, job: str | None = None, task: int | None = None) -> Any:
    """Return the strategy of a task of a cluster."""
    spec = lib.distribute.ClusterSpec(cluster)
    make = lib.distribute.cluster_resolver.SimpleClusterResolver
    resolver = make(spec, task_type=job, task_id=task, num_accelerators={"GPU": 0})
    return lib.v1.ParameterServerStrategy(resolver)


@scenario("PS1-1", "PS1-6")
def without_a_cluster_the_cpu_does_all(lib: Library) -> Any:
    extended = strategy_of(lib, {}).extended
    return [list(extended.worker_devices), extended.parameter_devices]


@scenario("PS1-2")
def a_cluster_needs_the_own_task(lib: Library) -> Any:
    says = ("must also specify `task_type` and `task_id`",)
    tasks = [(None, None), ("worker", None)]
    return [attempt(strategy_of, lib, CLUSTER, *task, says=says) for task in tasks]


@scenario("PS1-4", "PS1-6")
def a_worker_has_devices_and_servers(lib: Library) -> Any:
    extended = strategy_of(lib, CLUSTER, "worker", 1).extended
    return [list(extended.worker_devices), extended.parameter_devices]


@scenario("PS1-7")
def the_replicas_are_those_of_the_worker(lib: Library) -> Any:
    alone = strategy_of(lib, {}).num_replicas_in_sync
    return [alone, strategy_of(lib, CLUSTER, "worker", 1).num_replicas_in_sync]


@scenario("PS1-9")
def the_chief_writes(lib: Library) -> Any:
    with_chief = {**CLUSTER, "chief": ["c0:1"]}
    tasks: list[Any] = [
        ({},),
        (CLUSTER, "worker", 0),
        (CLUSTER, "worker", 1),
        (with_chief, "worker", 0),
        (with_chief, "chief", 0),
    ]
    answers = []
    for task in tasks:
        extended = strategy_of(lib, *task).extended
        flags = [extended.experimental_between_graph, extended.experimental_should_init]
        flags += [extended.should_checkpoint, extended.should_save_summary]
        answers.append(flags)
    return answers
