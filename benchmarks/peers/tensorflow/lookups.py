"""Rows of a variable of the parameter server strategy.

`... benchmarks.peers.tensorflow.lookups FD`
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from benchmarks.peers.lookups import answers
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.row_batches import LOOKUPS, ROWS, WIDTH
from benchmarks.peers.tensorflow import cluster

_RATE = 0.01
_INDICES = tf.TensorSpec([LOOKUPS], tf.int64)


class Rows:
    """Functions over the variable; as `Table`."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        with strategy.scope():
            self._table, self._accumulated = (
                tf.Variable(tf.zeros([ROWS, WIDTH])) for _ in range(2)
            )
        self._gradients = tf.ones([LOOKUPS, WIDTH])
        self._pull, self._push = (
            tf.function(function, input_signature=[_INDICES])
            for function in (self._pulled, self._pushed)
        )

    def pull(self, indices: Any) -> object:
        """Looks the rows up."""
        return memoryview(self._pull(indices))

    def push(self, indices: Any) -> object:
        """Adds up what is for the same row; the server steps Adagrad."""
        return memoryview(self._push(indices))

    def _pulled(self, indices: Any) -> Any:
        with tf.device(self._table.device):
            values = tf.raw_ops.ResourceGather(
                resource=self._table.handle, indices=indices, dtype=tf.float32
            )
        with tf.device(self._gradients.device):
            return tf.identity(values)

    def _pushed(self, indices: Any) -> Any:
        rows, places = tf.unique(indices)
        sums = tf.math.unsorted_segment_sum(self._gradients, places, tf.size(rows))
        with tf.device(self._table.device):
            step = tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=self._table.handle,
                accum=self._accumulated.handle,
                lr=_RATE,
                epsilon=1e-10,
                grad=sums,
                indices=rows,
            )
        with tf.device(self._gradients.device), tf.control_dependencies([step]):
            return tf.constant(0)


@contextmanager
def contestant() -> Iterator[Answer]:
    """What has a server with a table."""
    with cluster.strategy() as strategy:
        yield answers(Rows(strategy), tf.constant)


if __name__ == "__main__":
    serve(contestant)
