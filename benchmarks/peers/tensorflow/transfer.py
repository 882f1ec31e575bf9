"""A variable of TensorFlow's parameter server strategy.

`... benchmarks.peers.tensorflow.transfer FD`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import tensorflow as tf

from benchmarks.peers.process import Answer, serve
from benchmarks.peers.tensorflow import cluster
from benchmarks.peers.transfer import Transfers

_RATE = 0.1


class Variable:
    """A variable on the parameter server, and its gradient here; as `Transfer`."""

    def __init__(self, strategy: tf.distribute.Strategy, nbytes: int) -> None:
        with strategy.scope():
            variable = tf.Variable(tf.zeros([nbytes // 4]))
        self._push = _pushing(variable, tf.ones([nbytes // 4]))
        self._pull = _pulling(variable)

    def push(self) -> None:
        """Runs what steps SGD on the server, and fetches a mark of its end."""
        memoryview(self._push())

    def pull(self) -> None:
        """Gets the value."""
        # In place, but not before it is there.
        memoryview(self._pull())

    def close(self) -> None:
        """Lets go of the variable, which the server then frees."""
        del self._push, self._pull


def _pushing(variable: Any, gradient: Any) -> Callable[[], Any]:
    def push() -> Any:
        with tf.device(variable.device):
            step = tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle, alpha=_RATE, delta=gradient
            )
        with tf.device(gradient.device), tf.control_dependencies([step]):
            return tf.constant(0)

    return _compiled(push)


def _pulling(variable: Any) -> Callable[[], Any]:
    here = tf.constant(0).device

    def pull() -> Any:
        with tf.device(here):
            return variable.read_value()

    return _compiled(pull)


def _compiled(function: Callable[[], Any]) -> Callable[[], Any]:
    compiled: Callable[[], Any] = tf.function(function)
    return compiled


@contextmanager
def contestant() -> Iterator[Answer]:
    """What has a server."""
    with cluster.strategy() as strategy:
        yield Transfers(partial(Variable, strategy))


if __name__ == "__main__":
    serve(contestant)
