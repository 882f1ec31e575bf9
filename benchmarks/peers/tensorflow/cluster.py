"""Servers of TensorFlow, each a process of its own."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import tensorflow as tf


@contextmanager
def strategy(workers: int = 1, servers: int = 1) -> Iterator[tf.distribute.ParameterServerStrategy]:
    """A strategy with some workers and parameter servers."""
    with _cluster({"worker": workers, "ps": servers}) as cluster:
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), rpc_layer="grpc"
        )
        yield tf.distribute.ParameterServerStrategy(resolver)


@contextmanager
def _cluster(counts: Mapping[str, int]) -> Iterator[Mapping[str, Sequence[str]]]:
    """A server process for each task; yields the addresses by job."""
    addresses = iter(free_addresses(sum(counts.values())))
    cluster = {job: [next(addresses) for _ in range(count)] for job, count in counts.items()}
    spawn = multiprocessing.get_context("spawn")
    started = []
    for job, tasks in cluster.items():
        for task in range(len(tasks)):
            # They end with this process, if not before.
            started.append(
                spawn.Process(
                    target=serve, args=(cluster, job, task), name=f"{job} {task}", daemon=True
                )
            )
            started[-1].start()
    try:
        yield cluster
    finally:
        for process in started:
            process.kill()


def free_addresses(count: int) -> Sequence[str]:
    """Return addresses of this machine that nobody uses now."""
    with ExitStack() as reserved:
        servers = [
            reserved.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]


def serve(cluster: Mapping[str, Sequence[str]], job: str, task: int) -> None:
    """Be the server of a task until this process is ended."""
    tf.distribute.Server(
        tf.train.ClusterSpec(cluster), job_name=job, task_index=task, protocol="grpc"
    ).join()
