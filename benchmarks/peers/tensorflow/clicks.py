"""The click model on two servers, with TensorFlow's coordinator.

`... benchmarks.peers.tensorflow.clicks FD FILE WORKERS TABLES`

TABLES is "26" for a variable for each column, which the strategy places in turn, and "joined" for
one variable a server with every second row of all columns. Either way an id of a batch is looked up
once, and its gradients are added up before they are sent.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import accumulate
from typing import Any

import tensorflow as tf

from benchmarks.peers import clicks
from benchmarks.peers.clicks import COLUMNS, DIM, EPSILON, RATE, ROWS, SPREAD, TABLE_RATE
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.processor_time import processor_seconds
from benchmarks.peers.tensorflow import cluster

_SERVERS = 2
_PAIRS = [(i, j) for i in range(1 + COLUMNS) for j in range(i)]


class Table:
    """A variable with its accumulated squares. Made in the scope of a strategy."""

    def __init__(self, rows: int) -> None:
        self.values = tf.Variable(tf.random.uniform([rows, DIM], -SPREAD, SPREAD))
        self._squares = _beside(self.values)

    def pull(self, rows: Any) -> Any:
        """Return distinct rows, on the worker."""
        with tf.device(self.values.device):
            found = tf.raw_ops.ResourceGather(
                resource=self.values.handle, indices=rows, dtype=tf.float32
            )
        return tf.identity(found)

    def push(self, rows: Any, gradients: Any) -> Any:
        """Have the server step distinct rows by Adagrad."""
        with tf.device(self.values.device):
            return tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=self.values.handle,
                accum=self._squares.handle,
                lr=TABLE_RATE,
                epsilon=EPSILON,
                grad=gradients,
                indices=rows,
            )


class Model:
    """The model of the example. Made in the scope of a strategy."""

    def __init__(self, weights: Sequence[Any], joined: bool) -> None:
        counts = [-(-sum(ROWS) // _SERVERS)] * _SERVERS if joined else ROWS
        self._tables = [Table(count) for count in counts]
        self._offsets = tf.constant([[0], *([n] for n in accumulate(ROWS[:-1]))], tf.int64)
        self._joined = joined
        self._dense = [tf.Variable(weight.T) for weight in weights]
        self._squares = [*map(_beside, self._dense)]

    def step(self, dense: Any, ids: Any, clicked: Any) -> Any:
        """Train on a batch; return its mean cross entropy."""
        wanted, put_together = self._wanted(ids)
        pulled = [table.pull(rows) for table, (rows, _) in zip(self._tables, wanted, strict=True)]
        vectors = [
            tf.gather(values, places) for values, (_, places) in zip(pulled, wanted, strict=True)
        ]
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            logits = self._logits(dense, put_together(vectors))
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels=clicked, logits=logits)
            )
        of_vectors, of_dense = tape.gradient(loss, [vectors, self._dense])
        pushed = [
            table.push(rows, tf.math.unsorted_segment_sum(gradient, places, tf.size(rows)))
            for table, (rows, places), gradient in zip(
                self._tables, wanted, of_vectors, strict=True
            )
        ]
        pushed += [*map(_stepped, self._dense, self._squares, of_dense)]
        with tf.control_dependencies(pushed):
            return tf.identity(loss)

    def _wanted(self, ids: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
        """Return rows and places of each table, and what makes (N, 26, 16) of their vectors."""
        if not self._joined:
            return [tf.unique(each) for each in tf.unstack(ids)], lambda found: tf.stack(found, 1)
        flat = tf.reshape(tf.transpose(ids + self._offsets), [-1])
        of, numbers = tf.cast(flat % _SERVERS, tf.int32), tf.range(tf.size(flat))
        parts = tf.dynamic_partition(flat // _SERVERS, of, _SERVERS)
        places = tf.dynamic_partition(numbers, of, _SERVERS)
        return [tf.unique(each) for each in parts], lambda found: tf.reshape(
            tf.dynamic_stitch(places, found), [-1, COLUMNS, DIM]
        )

    def _logits(self, dense: Any, embedded: Any) -> Any:
        measured = tf.nn.relu(_mlp(dense, self._dense[:6]))
        vectors = tf.concat([measured[:, None], embedded], 1)
        products = tf.matmul(vectors, vectors, transpose_b=True)
        flat = tf.reshape(products, [-1, (1 + COLUMNS) ** 2])
        pairs = tf.gather(flat, [i * (1 + COLUMNS) + j for i, j in _PAIRS], axis=1)
        return tf.squeeze(_mlp(tf.concat([measured, pairs], 1), self._dense[6:]), 1)


def _beside(variable: Any) -> Any:
    """Create what an optimizer keeps of a variable, on the same server."""
    with tf.distribute.get_strategy().extended.colocate_vars_with(variable):
        return tf.Variable(tf.zeros_like(variable))


def _mlp(values: Any, layers: Sequence[Any]) -> Any:
    for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        values = tf.nn.relu(tf.matmul(values, weight) + bias)
    return tf.matmul(values, layers[-2]) + layers[-1]


def _stepped(variable: Any, squares: Any, gradient: Any) -> Any:
    with tf.device(variable.device):
        return tf.raw_ops.ResourceApplyAdagradV2(
            var=variable.handle, accum=squares.handle, lr=RATE, epsilon=EPSILON, grad=gradient
        )


class Cluster:
    """A coordinator with its servers; as `clicks.Trial`."""

    def __init__(self, log: clicks.Log, workers: int, joined: bool) -> None:
        self._log, self._workers = log, workers
        with ExitStack() as opened:
            strategy = opened.enter_context(cluster.strategy(workers, _SERVERS))
            with strategy.scope():
                self._model = Model(log.weights, joined)
            self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
            self._opened = opened.pop_all()
        self._endless: dict[int, Any] = {}

    def first_pass(self, size: int) -> float:
        """Train on the whole file once."""
        return clicks.last_quarter(self._trained(size, clicks.EXAMPLES // size))

    def steps(self, size: int) -> None:
        """Train on `TURN` more examples of each worker."""
        self._trained(size, self._workers * clicks.TURN // size)

    def _trained(self, size: int, steps: int) -> list[float]:
        if size not in self._endless:
            self._endless[size] = self._stepping(size)
        step, batches = self._endless[size]
        losses = [self._coordinator.schedule(step, args=(batches,)) for _ in range(steps)]
        self._coordinator.join()
        return [loss.fetch() for loss in losses]

    def _stepping(self, size: int) -> tuple[Any, Any]:
        """Return what takes a step, and an iterator over batches, which workers shuffle."""
        log, alone = self._log, self._workers == 1

        def dataset() -> Any:
            dense, ids, clicked = log.examples
            blocks = ids.reshape(COLUMNS, -1, size).transpose(1, 0, 2)
            columns = dense.reshape(len(blocks), size, -1), blocks, clicked.reshape(-1, size)
            batches = tf.data.Dataset.from_tensor_slices(columns)
            return (batches if alone else batches.shuffle(len(blocks))).repeat()

        def step(batches: Any) -> Any:
            return self._model.step(*next(batches))

        return tf.function(step), iter(self._coordinator.create_per_worker_dataset(dataset))

    def processor_seconds(self, of: str) -> float:
        """Return what the processes have used."""
        if of == "all":
            return processor_seconds(os.getpid())
        servers = [each for each in multiprocessing.active_children() if each.name[:2] == "ps"]
        return sum(processor_seconds(each.pid or 0) for each in servers)

    def close(self) -> None:
        """End the servers."""
        self._opened.close()


@contextmanager
def contestant(file: str, workers: str, tables: str) -> Iterator[Answer]:
    """What takes steps, all of a turn scheduled at once, as is its way."""
    log = clicks.Log(file)

    def begin() -> Cluster:
        return Cluster(log, int(workers), tables == "joined")

    with closing(clicks.Contestant(begin, int(workers))) as answering:
        yield answering


if __name__ == "__main__":
    serve(contestant)
