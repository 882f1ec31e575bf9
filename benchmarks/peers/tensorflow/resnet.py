"""A step of Adam on a parameter server: `... benchmarks.peers.tensorflow.resnet FD`.

One function sends all gradients, steps Adam, and gets all values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.peers import resnet, timing
from benchmarks.peers.process import serve
from benchmarks.peers.tensorflow import cluster
from benchmarks.peers.tensorflow.adam import Adam

_RATE = 1e-3


def main(strategy: tf.distribute.Strategy) -> None:
    """Measures a step."""
    with strategy.scope():
        variables = [tf.Variable(tf.zeros(shape)) for shape in resnet.shapes()]
        adam = Adam(variables, _RATE)
    gradients = [tf.ones(shape) for shape in resnet.shapes()]

    def stepped() -> Sequence[Any]:
        with tf.control_dependencies(adam.apply(gradients)):
            return [_fetched(variable, gradients[0].device) for variable in variables]

    compiled: Callable[[], Sequence[Any]] = tf.function(stepped)
    serve(timing.answering(lambda: [memoryview(value) for value in compiled()]))


def _fetched(variable: Any, device: str) -> Any:
    value = variable.read_value()
    with tf.device(device):
        return tf.identity(value)


if __name__ == "__main__":
    with cluster.strategy() as strategy:
        main(strategy)
