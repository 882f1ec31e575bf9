"""The API of TensorFlow 1.12 by what TensorFlow 2 calls its methods.

So far as they give the same results: no towers that overlap, one destination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tests.differential.library import Names

distribute = tf.compat.v1.distribute


class Strategy:
    """A strategy of TensorFlow 2 with the methods of 1.12."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self.unwrap = lambda value: list(strategy.experimental_local_results(value))
        self.num_towers = strategy.num_replicas_in_sync
        self.value_container = strategy.extended.value_container
        self.read_var = strategy.extended.read_var

    @contextmanager
    def scope(self) -> Iterator[Strategy]:
        with self._strategy.scope():
            yield self

    def call_for_each_tower(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._strategy.extended.call_for_each_replica(fn, args, kwargs)

    def reduce(self, aggregation: Any, value: Any, destinations: Any) -> Any:
        op = distribute.ReduceOp.from_variable_aggregation(aggregation)
        return self._strategy.extended.reduce_to(op, value, destinations)

    def batch_reduce(self, aggregation: Any, pairs: Any) -> Any:
        op = distribute.ReduceOp.from_variable_aggregation(aggregation)
        return self._strategy.extended.batch_reduce_to(op, pairs)

    def broadcast(self, tensor: Any, destinations: Any) -> Any:
        return self._strategy.extended.broadcast_to(tensor, destinations)

    def update(self, var: Any, fn: Any, *args: Any, grouped: bool = True, **kwargs: Any) -> Any:
        result = self._strategy.extended.update(var, fn, args, kwargs, group=grouped)
        return result if grouped else list(result)

    def distribute_dataset(self, dataset_fn: Callable[[], Any]) -> Any:
        return Dataset(self._strategy, dataset_fn)

    def run_steps_on_dataset(self, fn: Any, iterator: Any, iterations: int) -> Any:
        def step(context: Any, inputs: Any) -> Any:
            return fn(context, *(inputs if isinstance(inputs, tuple) else (inputs,)))

        run = self._strategy.extended.experimental_run_steps_on_iterator
        return run(step, iterator, iterations)


class Dataset:
    """A dataset whose elements go to one device after the other."""

    def __init__(self, strategy: Any, dataset_fn: Callable[[], Any]) -> None:
        self._iterator = strategy.make_input_fn_iterator(lambda context: dataset_fn())

    def make_one_shot_iterator(self) -> Any:
        return self._iterator


class Tower:
    """The running replica with the methods of a tower."""

    def __init__(self, replica: Any) -> None:
        self._replica = replica
        self.tower_id = int(replica.replica_id_in_sync_group)
        self.num_towers = replica.num_replicas_in_sync

    def merge_call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def merge(strategy: Any, *merged: Any, **merged_kwargs: Any) -> Any:
            return fn(Strategy(strategy), *merged, **merged_kwargs)

        return self._replica.merge_call(merge, args, kwargs)


class Towers:
    """The names of `tf.contrib.distribute`."""

    has_distribution_strategy = staticmethod(distribute.has_strategy)
    in_cross_tower_context = staticmethod(distribute.in_cross_replica_context)

    @staticmethod
    def MirroredStrategy(devices: Any) -> Strategy:
        return Strategy(distribute.MirroredStrategy(devices))

    @staticmethod
    def OneDeviceStrategy(device: str) -> Strategy:
        return Strategy(distribute.OneDeviceStrategy(device))

    @staticmethod
    def get_tower_context() -> Tower | None:
        replica = distribute.get_replica_context()
        return None if replica is None else Tower(replica)


CONTRIB = Names(Towers, tf.compat.v1)
