"""TensorFlow's coordinator: `... tensorflow_coordinator FD WORKERS`."""

from __future__ import annotations

import multiprocessing
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import tensorflow as tf

from benchmarks.peers.coordination import measures
from benchmarks.peers.process import serve


def main(workers: int) -> None:
    """Starts a cluster and measures what it is asked for."""
    with _cluster({"worker": workers, "ps": 1}) as cluster:
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), rpc_layer="grpc"
        )
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        with strategy.scope():
            variable = tf.Variable(tf.zeros([10]))

        def nothing() -> None:
            pass

        def update() -> None:
            variable.assign_add(tf.ones([10]))

        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        closures = {"nothing": tf.function(nothing), "update": tf.function(update)}
        serve(measures(coordinator, closures))


@contextmanager
def _cluster(counts: Mapping[str, int]) -> Iterator[Mapping[str, Sequence[str]]]:
    """A server process for each task; yields the addresses by job."""
    addresses = iter(_free_addresses(sum(counts.values())))
    cluster = {
        job: [next(addresses) for _ in range(count)] for job, count in counts.items()
    }
    spawn = multiprocessing.get_context("spawn")
    for job, tasks in cluster.items():
        for task in range(len(tasks)):
            # They end with this process.
            spawn.Process(target=_serve, args=(cluster, job, task), daemon=True).start()
    yield cluster


def _free_addresses(count: int) -> Sequence[str]:
    with ExitStack() as reserved:
        servers = [
            reserved.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(count)
        ]
        return [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]


def _serve(cluster: Mapping[str, Sequence[str]], job: str, task: int) -> None:
    tf.distribute.Server(
        tf.train.ClusterSpec(cluster), job_name=job, task_index=task, protocol="grpc"
    ).join()


if __name__ == "__main__":
    main(int(sys.argv[2]))
