"""A step of Adam on a parameter server.

`... benchmarks.peers.tensorflow.resnet FD TENSORS`

One function sends all gradients, steps Adam, and gets all values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from benchmarks.peers import resnet, timing
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.tensorflow import cluster
from benchmarks.peers.tensorflow.adam import Adam

_RATE = 1e-3


@contextmanager
def contestant(tensors: str) -> Iterator[Answer]:
    """What takes a step."""
    with cluster.strategy() as strategy:
        step = _stepping(strategy, int(tensors))
        yield timing.answering(lambda: [memoryview(value) for value in step()])


def _stepping(strategy: tf.distribute.Strategy, tensors: int) -> Callable[[], Sequence[Any]]:
    shapes = resnet.shapes()[:tensors]
    with strategy.scope():
        variables = [tf.Variable(tf.zeros(shape)) for shape in shapes]
        adam = Adam(variables, _RATE)
    gradients = [tf.ones(shape) for shape in shapes]

    def step() -> Sequence[Any]:
        with tf.control_dependencies(adam.apply(gradients)):
            return [_fetched(variable, gradients[0].device) for variable in variables]

    compiled: Callable[[], Sequence[Any]] = tf.function(step)
    return compiled


def _fetched(variable: Any, device: str) -> Any:
    value = variable.read_value()
    with tf.device(device):
        return tf.identity(value)


if __name__ == "__main__":
    serve(contestant)
