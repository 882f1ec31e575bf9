"""TensorFlow's coordinator with worker servers.

`... benchmarks.peers.tensorflow.coordinator FD WORKERS`
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from benchmarks.peers.coordination import answers
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.tensorflow import cluster


@contextmanager
def contestant(workers: str) -> Iterator[Answer]:
    """What has a cluster with so many workers."""
    with cluster.strategy(int(workers)) as strategy:
        with strategy.scope():
            variable = tf.Variable(tf.zeros([10]))

        def nothing() -> None:
            pass

        def update() -> None:
            variable.assign_add(tf.ones([10]))

        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        closures = {"nothing": tf.function(nothing), "update": tf.function(update)}
        yield answers(coordinator, closures)


if __name__ == "__main__":
    serve(contestant)
