"""Resolvers that read the environment: TF_CONFIG and Slurm's variables."""

from __future__ import annotations

import os
from typing import Any

from tests.differential.answer import attempt
from tests.differential.environment import environment, tf_config
from tests.differential.library import Library
from tests.differential.scenario import scenario

CLUSTER = {"ps": ["p0:1", "p1:1"], "worker": ["w0:1", "w1:1"]}
TASK = {"type": "ps", "index": 1}


def tf_config_resolver(lib: Library, *args: Any, **settings: Any) -> Any:
    """Return a resolver of TF_CONFIG."""
    return lib.distribute.cluster_resolver.TFConfigClusterResolver(*args, **settings)


def told(resolver: Any) -> Any:
    """Return all that a resolver of TF_CONFIG says."""
    own = [resolver.task_type, resolver.task_id, resolver.rpc_layer]
    return [resolver.cluster_spec().as_dict(), *own, resolver.environment]


@scenario("RES-7", core=(310,))
def tf_config_has_cluster_and_task(lib: Library) -> Any:
    with tf_config(cluster=CLUSTER, task=TASK, rpc_layer="grpc", environment="cloud"):
        return told(tf_config_resolver(lib))


@scenario("RES-7", "RES-11", core=(310,))
def tf_config_has_a_cluster_with_gaps(lib: Library) -> Any:
    sparse = {"ps": ["p0:1"], "worker": {"1": "w1:1", "4": "w4:1"}}
    with tf_config(cluster=sparse, task={"type": "worker", "index": 4}):
        resolver = tf_config_resolver(lib)
        return [told(resolver), resolver.master()]


@scenario("RES-7")
def without_tf_config_the_cluster_is_empty(lib: Library) -> Any:
    with environment(TF_CONFIG="{}"):
        return told(tf_config_resolver(lib))


@scenario("RES-7")
def tf_config_has_to_be_json(lib: Library) -> Any:
    with environment(TF_CONFIG="{'cluster'"):
        return attempt(tf_config_resolver(lib).cluster_spec)


@scenario("RES-9", core=(311,))
def the_master_is_the_own_task_or_that_asked_for(lib: Library) -> Any:
    with tf_config(cluster=CLUSTER, task=TASK, rpc_layer="grpc"):
        resolver = tf_config_resolver(lib)
        return [
            resolver.master(),
            resolver.master("worker", 0),
            resolver.master("worker", 0, "http"),
        ]


@scenario("RES-9", core=(311,))
def the_session_master_is_the_master(lib: Library) -> Any:
    with tf_config(cluster=CLUSTER, task=TASK, session_master="m:9"):
        return tf_config_resolver(lib).master()


@scenario("RES-9", core=(311,))
def a_cluster_of_one_task_has_no_master(lib: Library) -> Any:
    with tf_config(cluster={}):
        none = tf_config_resolver(lib).master()
    with tf_config(cluster={"worker": ["w0:1"]}, rpc_layer="grpc"):
        return [none, tf_config_resolver(lib).master()]


@scenario("RES-9", says=("No such job in cluster",))
def a_master_needs_a_task(lib: Library) -> Any:
    with tf_config(cluster=CLUSTER):
        return tf_config_resolver(lib).master()


@scenario("RES-7", "RES-10")
def what_a_resolver_was_told_goes_before_tf_config(lib: Library) -> Any:
    with tf_config(cluster=CLUSTER, task=TASK, rpc_layer="grpc", environment="cloud"):
        resolver = tf_config_resolver(lib, "worker", 0, "http", "lab")
        before = [told(resolver), resolver.master()]
        resolver.task_type, resolver.task_id, resolver.rpc_layer = "ps", 0, "grpc"
        return [before, told(resolver), resolver.master()]


@scenario("RES-8", core=(313,))
def type_and_index_of_the_task_are_converted(lib: Library) -> Any:
    with tf_config(cluster=CLUSTER, task={"type": 123456, "index": "1"}):
        resolver = tf_config_resolver(lib)
        return [resolver.task_type, resolver.task_id]


def slurm(lib: Library, *args: Any, **settings: Any) -> Any:
    """Return a resolver of Slurm's variables."""
    return lib.distribute.cluster_resolver.SlurmClusterResolver(*args, **settings)


def step(rank: int = 3, tasks: str = "2(x2),1") -> Any:
    """Return a scope that looks like a process of a job step."""
    return environment(
        SLURM_PROCID=str(rank),
        SLURM_STEP_NUM_TASKS="5",
        SLURM_STEP_NODELIST="t02n[13,41],t01n03",
        SLURM_STEP_TASKS_PER_NODE=tasks,
        CUDA_VISIBLE_DEVICES="",
    )


@scenario("RES-18", core=(316,))
def lists_of_hosts_are_expanded(lib: Library) -> Any:
    lists = ["n1", "n[1-2],m5,o[3-4,6,7-9]", "n[01-03,10]", "[3-1],a", "n[1", "n[1]m"]
    says = ("Invalid hostlist format",)
    return [attempt(lib.slurm.expand_hostlist, each, says=says) for each in lists]


@scenario("RES-18", core=(316,))
def numbers_of_tasks_are_expanded(lib: Library) -> Any:
    lists = ["4", "3(x2),2,1", "3(x2),4,2(x3)", "", "1,,2", "x2"]
    says = ("Invalid tasks-per-node list format",)
    return [attempt(lib.slurm.expand_tasks_per_node, each, says=says) for each in lists]


@scenario("RES-14", "RES-15", core=(317,))
def slurm_tells_hosts_and_own_task(lib: Library) -> Any:
    with step():
        resolver = slurm(lib, {"ps": 1, "worker": 4}, gpus_per_node=2, gpus_per_task=1)
        before = [*resolver.get_task_info(), resolver.master()]
        cluster = resolver.cluster_spec().as_dict()
        return [before, cluster, *resolver.get_task_info(), resolver.master()]


@scenario("RES-14", core=(317,))
def tasks_of_slurm_are_workers(lib: Library) -> Any:
    with step():
        resolver = slurm(lib, gpus_per_node=2)
        return [resolver.cluster_spec().as_dict(), *resolver.get_task_info()]


@scenario("RES-15", core=(317,))
def the_number_of_tasks_of_each_host_is_told(lib: Library) -> Any:
    with step():
        resolver = slurm(lib, {"worker": 6}, tasks_per_node=2, gpus_per_node=2)
        return [resolver.cluster_spec().as_dict(), resolver.master("worker", 0)]


@scenario("RES-15", "RES-17", core=(318,))
def tasks_of_a_host_have_ports_and_gpus_of_their_own(lib: Library) -> Any:
    seen = []
    for rank in (0, 1, 4):
        with step(rank, "2,2,1"):
            resolver = slurm(lib, port_base=2222, gpus_per_node=4, gpus_per_task=2)
            resolver.cluster_spec()
            gpus = os.environ["CUDA_VISIBLE_DEVICES"]
            seen.append([gpus, resolver.master(), resolver.num_accelerators()])
    return seen


@scenario("RES-16")
def slurm_has_other_numbers_of_tasks_and_gpus(lib: Library) -> Any:
    with step():
        return [
            attempt(
                lambda: slurm(lib, {"worker": 9}, gpus_per_node=2),
                says=("Requested 9 tasks but only 5 were assigned",),
            ),
            attempt(
                lambda: slurm(lib, gpus_per_node=1, gpus_per_task=1),
                says=("Requested more GPUs per node than available",),
            ),
        ]


@scenario("RES-16")
def hosts_without_gpus(lib: Library) -> Any:
    with step():
        resolver = slurm(lib, gpus_per_node=0)
        return attempt(lambda: resolver.cluster_spec().as_dict())


@scenario("RES-14", says=("SLURM_PROCID not found in environment",))
def a_step_of_slurm_is_needed(lib: Library) -> Any:
    with environment():
        os.environ.pop("SLURM_PROCID", None)
        return slurm(lib)
