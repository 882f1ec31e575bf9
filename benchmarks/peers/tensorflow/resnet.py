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

_HYPERPARAMETERS = {
    "beta1_power": 0.9,
    "beta2_power": 0.999,
    "lr": 1e-3,
    "beta1": 0.9,
    "beta2": 0.999,
    "epsilon": 1e-8,
}


def main(strategy: tf.distribute.Strategy) -> None:
    """Measures a step."""
    with strategy.scope():
        variables, means, variances = (
            [tf.Variable(tf.zeros(shape)) for shape in resnet.shapes()]
            for _ in range(3)
        )
    gradients = [tf.ones(shape) for shape in resnet.shapes()]
    moments = zip(variables, means, variances, gradients, strict=True)
    compiled: Callable[[], Sequence[Any]] = tf.function(_stepping([*moments]))
    serve(timing.answering(lambda: [memoryview(value) for value in compiled()]))


def _stepping(moments: Sequence[Sequence[Any]]) -> Callable[[], Sequence[Any]]:
    def step() -> Sequence[Any]:
        return [_stepped(*each) for each in moments]

    return step


def _stepped(variable: Any, mean: Any, variance: Any, gradient: Any) -> Any:
    with tf.device(variable.device):
        applied = tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=mean.handle,
            v=variance.handle,
            grad=gradient,
            **_HYPERPARAMETERS,
        )
        with tf.control_dependencies([applied]):
            value = variable.read_value()
    with tf.device(gradient.device):
        return tf.identity(value)


if __name__ == "__main__":
    with cluster.strategy() as strategy:
        main(strategy)
