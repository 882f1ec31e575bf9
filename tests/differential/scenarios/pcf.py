"""Session configurations of a strategy with parameter servers."""

from __future__ import annotations

from typing import Any

from tests.differential.library import Library
from tests.differential.scenario import scenario

CLUSTER = {
    "chief": ["c0:1"],
    "worker": ["w0:1", "w1:1"],
    "ps": ["p0:1", "p1:1"],
    "evaluator": ["e0:1"],
}


def strategy_of(lib: Library, job: str | None = None, task: int | None = None) -> Any:
    """Return the strategy of a task; without one that of no cluster."""
    cluster = lib.distribute.ClusterSpec(CLUSTER if job else {})
    make = lib.distribute.cluster_resolver.SimpleClusterResolver
    resolver = make(cluster, task_type=job, task_id=task, num_accelerators={"GPU": 0})
    return lib.v1.ParameterServerStrategy(resolver)


def config(lib: Library) -> Any:
    """Return a configuration with filters and a cluster."""
    cluster = lib.distribute.ClusterSpec({"worker": ["w:1"]}).as_cluster_def()
    filters = ["/job:tpu_worker"]
    return lib.v1.ConfigProto(device_filters=filters, cluster_def=cluster)


def parts(config: Any) -> Any:
    """Return the fields of a configuration."""
    jobs = [job.name for job in config.cluster_def.job]
    return [config.isolate_session_state, list(config.device_filters), jobs]


@scenario("PCF-1", core=(201,))
def without_a_cluster_only_the_state_is_isolated(lib: Library) -> Any:
    return parts(strategy_of(lib).update_config_proto(config(lib)))


@scenario("PCF-2", "PCF-5", core=(200,))
def a_worker_sees_itself_and_the_servers(lib: Library) -> Any:
    given = config(lib)
    tasks = [("chief", 0), ("worker", 0), ("worker", 1)]
    updated = [strategy_of(lib, *task).update_config_proto(given) for task in tasks]
    return [[parts(each) for each in updated], parts(given)]


@scenario("PCF-3")
def an_evaluator_sees_itself(lib: Library) -> Any:
    return parts(strategy_of(lib, "evaluator", 0).update_config_proto(config(lib)))


@scenario("PCF-4")
def a_server_has_no_filters(lib: Library) -> Any:
    return parts(strategy_of(lib, "ps", 1).update_config_proto(config(lib)))


@scenario("PCF-2", "CFG-1")
def configuring_changes_the_given_configuration(lib: Library) -> Any:
    given = config(lib)
    answer = strategy_of(lib, "worker", 1).configure(session_config=given)
    return [answer, parts(given)]
