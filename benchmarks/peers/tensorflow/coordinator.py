"""TensorFlow's coordinator with worker servers.

`... benchmarks.peers.tensorflow.coordinator FD WORKERS`
"""

from __future__ import annotations

import sys

import tensorflow as tf

from benchmarks.peers.coordination import answers
from benchmarks.peers.process import serve
from benchmarks.peers.tensorflow import cluster


def main(workers: int) -> None:
    """Starts a cluster and measures what it is asked for."""
    with cluster.strategy(workers) as strategy:
        with strategy.scope():
            variable = tf.Variable(tf.zeros([10]))

        def nothing() -> None:
            pass

        def update() -> None:
            variable.assign_add(tf.ones([10]))

        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        closures = {"nothing": tf.function(nothing), "update": tf.function(update)}
        serve(answers(coordinator, closures))


if __name__ == "__main__":
    main(int(sys.argv[2]))
