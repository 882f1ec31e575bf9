"""The same model with TensorFlow's coordinator.

`... benchmarks.peers.tensorflow.movielens FD FILE`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from benchmarks.peers import ratings, timing
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.tensorflow import cluster
from benchmarks.peers.tensorflow.adam import Adam

_DROPPED = 0.5


@contextmanager
def contestant(file: str) -> Iterator[Answer]:
    """What takes steps, of which several are scheduled at once, as is its way."""
    with cluster.strategy() as strategy:
        yield timing.answering(_turn(file, strategy), each=ratings.TURN)


def _turn(file: str, strategy: tf.distribute.Strategy) -> Callable[[], None]:
    with strategy.scope():
        model = _variables()
        adam = Adam(model, ratings.RATE)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(_dataset(file)))
    step = tf.function(_stepping(model, adam))

    def turn() -> None:
        for _ in range(ratings.TURN):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()

    return turn


def _variables() -> Sequence[Any]:
    """Vectors and biases of users and items, and the offset."""
    shapes = [
        (ratings.USERS, ratings.WIDTH),
        (ratings.ITEMS, ratings.WIDTH),
        (ratings.USERS, 1),
        (ratings.ITEMS, 1),
    ]
    tables = [tf.Variable(tf.random.normal(shape, stddev=0.03)) for shape in shapes]
    return [*tables, tf.Variable(3.0)]


def _dataset(file: str) -> Callable[[], Any]:
    rows = ratings.load(file)
    batches = rows[: len(rows) // ratings.BATCH * ratings.BATCH]
    columns = tuple(batches.T.reshape(3, -1, ratings.BATCH))

    def dataset() -> Any:
        # Whole batches: to shuffle single ratings takes longer than a step.
        whole = tf.data.Dataset.from_tensor_slices(columns)
        return whole.shuffle(len(columns[0])).repeat()

    return dataset


def _stepping(model: Sequence[Any], adam: Adam) -> Callable[[Any], None]:
    def step(iterator: Any) -> None:
        user, item, rating = next(iterator)
        with tf.GradientTape() as tape:
            error = _predicted(model, user, item) - tf.cast(rating, tf.float32)
            loss = tf.reduce_mean(tf.square(error))
        adam.apply(tape.gradient(loss, model))

    return step


def _predicted(model: Sequence[Any], user: Any, item: Any) -> Any:
    users, items, user_biases, item_biases, offset = model
    vectors = tf.nn.dropout(tf.gather(users, user), _DROPPED) * tf.gather(items, item)
    biases = tf.gather(user_biases, user) + tf.gather(item_biases, item)
    return offset + tf.squeeze(biases, 1) + tf.reduce_sum(vectors, 1)


if __name__ == "__main__":
    serve(contestant)
