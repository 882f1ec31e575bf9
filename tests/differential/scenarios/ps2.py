"""Clusters that a strategy with parameter servers refuses."""

from __future__ import annotations

from typing import Any

from tests.differential.library import Library
from tests.differential.scenario import scenario

CLUSTER = {"chief": ["c0:1"], "worker": ["w0:1"], "ps": ["p0:1"]}


def construct(lib: Library, cluster: Any, job: str) -> Any:
    """Construct the strategy of task 0 of a job."""
    spec = lib.distribute.ClusterSpec(cluster)
    make = lib.distribute.cluster_resolver.SimpleClusterResolver
    resolver = make(spec, task_type=job, task_id=0, rpc_layer="grpc")
    return lib.distribute.ParameterServerStrategy(resolver)


@scenario("PS2-2", says=("Disallowed task type found in cluster spec",))
def a_job_without_a_role(lib: Library) -> Any:
    return construct(lib, {**CLUSTER, "some_arbitrary_name": ["s0:1"]}, "chief")


@scenario("PS2-3", says=("Unrecognized task_type",))
def a_task_of_no_role(lib: Library) -> Any:
    return construct(lib, CLUSTER, "foobar")


@scenario("PS2-4", says=("There must be at most one 'chief'",))
def two_chiefs(lib: Library) -> Any:
    return construct(lib, {**CLUSTER, "chief": ["c0:1", "c1:1"]}, "chief")


def coordinate(lib: Library, cluster: Any) -> Any:
    """Construct the strategy of a chief and its coordinator."""
    strategy = construct(lib, cluster, "chief")
    return lib.distribute.coordinator.ClusterCoordinator(strategy)


@scenario("PS2-4", says=("at least one ps",))
def no_server(lib: Library) -> Any:
    return coordinate(lib, {"chief": ["c0:1"], "worker": ["w0:1"]})


@scenario("PS2-4", says=("at least one worker",))
def no_worker(lib: Library) -> Any:
    return coordinate(lib, {"chief": ["c0:1"], "ps": ["p0:1"]})


@scenario("PS2-1", says=("Cluster spec must be non-empty",))
def an_empty_cluster(lib: Library) -> Any:
    return coordinate(lib, {})


@scenario("PS2-11")
def plain_values_are_reduced_to_themselves(lib: Library) -> Any:
    with lib.served(1) as strategy:
        return [
            [
                strategy.reduce(reduce_op, lib.tensor([1.0, 2.0]), axis=None),
                strategy.reduce(reduce_op, None, axis=None),
            ]
            for reduce_op in ("SUM", "MEAN")
        ]


@scenario("PS2-12")
def values_of_the_only_replica(lib: Library) -> Any:
    with lib.served(1) as strategy:
        return [
            strategy.gather(lib.tensor([1.0, 2.0]), axis=0),
            strategy.experimental_distribute_values_from_function(
                lambda context: context.replica_id_in_sync_group + 5
            ),
        ]
