"""Resolvers that are told the cluster, and unions of them."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario

PS = {"ps": ["p0:1", "p1:1"]}
WORKERS = {"worker": ["w0:1", "w1:1"]}


def simple(lib: Library, cluster: Any, **settings: Any) -> Any:
    """Return a resolver that was told the cluster."""
    spec = lib.distribute.ClusterSpec(cluster)
    return lib.distribute.cluster_resolver.SimpleClusterResolver(spec, **settings)


def union(lib: Library, *resolvers: Any, **settings: Any) -> Any:
    """Return the union of resolvers."""
    return lib.distribute.cluster_resolver.UnionResolver(*resolvers, **settings)


def united(lib: Library, *clusters: Any) -> Any:
    """Return the union of clusters."""
    resolvers = [simple(lib, cluster) for cluster in clusters]
    return union(lib, *resolvers).cluster_spec().as_dict()


def task(resolver: Any) -> Any:
    """Return what a resolver says of its own process."""
    own = [resolver.task_type, resolver.task_id]
    return [*own, resolver.environment, resolver.rpc_layer]


@scenario("RES-1", core=(303,))
def a_simple_resolver_says_what_it_was_told(lib: Library) -> Any:
    resolver = simple(
        lib,
        WORKERS,
        task_type="ps",
        task_id=1,
        environment="cloud",
        num_accelerators={"GPU": 8},
        rpc_layer="grpc",
    )
    told = [task(resolver), resolver.num_accelerators(), resolver.master()]
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 0, "http"
    return [told, task(resolver), resolver.cluster_spec().as_dict()]


@scenario("RES-1", core=(303,))
def a_simple_resolver_told_little(lib: Library) -> Any:
    resolver = simple(lib, {})
    return [task(resolver), resolver.num_accelerators(), resolver.master()]


@scenario("RES-1")
def a_simple_resolver_is_asked_for_a_master(lib: Library) -> Any:
    resolver = simple(lib, WORKERS, master="m:9", task_type="worker", task_id=1)
    return [
        resolver.master(),
        resolver.master("worker", 0),
        resolver.master("worker", 0, rpc_layer="grpc"),
        resolver.master("worker"),
    ]


@scenario("RES-1")
def a_simple_resolver_refuses_other_types(lib: Library) -> Any:
    make = lib.distribute.cluster_resolver.SimpleClusterResolver
    spec = lib.distribute.ClusterSpec({})
    return [attempt(make, WORKERS), attempt(make, spec, 1)]


@scenario("RES-2")
def a_union_is_of_resolvers(lib: Library) -> Any:
    make = lib.distribute.cluster_resolver.UnionResolver
    return [
        attempt(make, says=("At least one ClusterResolver",)),
        attempt(make, WORKERS),
        attempt(
            lambda: make(simple(lib, WORKERS), color="red"),
            says=("Unexpected kwargs provided",),
        ),
    ]


@scenario("RES-4", core=(305,))
def the_first_resolver_speaks_for_the_union(lib: Library) -> Any:
    first = simple(lib, PS, task_type="ps", task_id=1, environment="cloud", rpc_layer="grpc")
    other = simple(lib, WORKERS, task_type="worker", task_id=1, environment="lab")
    resolver = union(lib, first, other)
    said = [task(resolver)]
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 2, "http"
    said.append(task(resolver))
    own = union(lib, first, other, task_type="chief", task_id=3, rpc_layer="http")
    return [*said, task(own)]


@scenario("RES-4")
def a_union_is_told_that_it_is_task_0(lib: Library) -> Any:
    return union(lib, simple(lib, PS, task_id=1), task_id=0).task_id


@scenario("RES-3", core=(306,))
def lists_of_tasks_follow_each_other(lib: Library) -> Any:
    more = {"worker": ["w2:1"]}
    return [united(lib, PS, WORKERS), united(lib, WORKERS, more, PS), united(lib, {})]


@scenario("RES-5", core=(306,))
def the_master_of_a_union(lib: Library) -> Any:
    first = simple(lib, PS, master="m:9", rpc_layer="grpc")
    resolver = union(lib, first, simple(lib, WORKERS))
    return [
        resolver.master(),
        resolver.master("worker", 1),
        resolver.master("worker", 1, "http"),
        resolver.master(rpc_layer="http"),
        attempt(resolver.master, "worker", 2, says=("No task with index 2",)),
    ]


@scenario("RES-6")
def the_accelerators_of_a_union(lib: Library) -> Any:
    first = simple(lib, PS, num_accelerators={"GPU": 4})
    return union(lib, first, simple(lib, WORKERS)).num_accelerators()


@scenario("RES-3", core=(307,))
def a_task_is_described_once(lib: Library) -> Any:
    sparse = {"worker": {1: "w1:1", 3: "w3:1"}}
    says = ("Duplicate keys detected",)
    return [
        attempt(united, lib, sparse, {"worker": {3: "x:1"}}, says=says),
        attempt(united, lib, sparse, WORKERS, says=says),
    ]


@scenario("RES-3", core=(308,))
def tasks_with_gaps_keep_their_numbers(lib: Library) -> Any:
    sparse = {"worker": {2: "w2:1", 5: "w5:1"}}
    return [
        united(lib, sparse, {"worker": {7: "w7:1"}}),
        united(lib, sparse, WORKERS),
        united(lib, sparse, PS),
    ]
