"""What the strategies of TensorFlow 1.12 have in common."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from weakref import WeakValueDictionary

from stratagem._core.contexts import in_cross_replica_context, require_strategy
from stratagem._core.distributed_values import PerReplica, components, select_replica_mirrored
from stratagem._core.nests import map_leaves
from stratagem._core.options import RunOptions, VariableAggregation, old_spelling
from stratagem._core.variables import Variable
from stratagem._input.iterator import InputIterator
from stratagem._strategies.strategy import Strategy
from stratagem.contrib._loops import (
    MultiStepContext,
    PerDeviceDataset,
    Step,
    mapped,
    reduced,
    spread,
    unpacking,
)
from stratagem_proto.errors import ContextError
from stratagem_proto.v1.cluster_pb2 import ConfigProto


class StrategyProperties:
    """The methods of TensorFlow 1.12 that may be called anywhere. Spec: TWR-17, TWR-18."""

    _strategy: Strategy

    @old_spelling("Variable.read_value")
    def read_var(self, var: Variable) -> Any:
        """Return the value of a variable, over all towers. Spec: TWR-18."""
        return self._strategy.extended.read_var(var)

    @old_spelling("extended.value_container")
    def value_container(self, value: Any) -> Any:
        """Return the variable that `value` is a component of. Spec: TWR-18."""
        return self._strategy.extended.value_container(value)

    @property
    @old_spelling("num_replicas_in_sync == 1")
    def is_single_tower(self) -> bool:
        """Whether there is one tower. Spec: TWR-18, MS-10."""
        return self._strategy.num_replicas_in_sync == 1

    @property
    @old_spelling("num_replicas_in_sync")
    def num_towers(self) -> int:
        """The number of towers. Spec: TWR-18."""
        return self._strategy.num_replicas_in_sync

    @property
    @old_spelling("extended.worker_devices")
    def worker_devices(self) -> list[str]:
        """Full names of the towers' devices. Spec: TWR-18."""
        return self._worker_devices()

    def _worker_devices(self) -> list[str]:
        return list(self._strategy.extended.worker_devices)

    @property
    @old_spelling("extended.parameter_devices")
    def parameter_devices(self) -> list[str]:
        """Names of the variables' devices. Spec: TWR-18."""
        return list(self._strategy.extended.parameter_devices)

    @old_spelling("extended.non_slot_devices")
    def non_slot_devices(self, var_list: Sequence[Variable]) -> Any:
        """Return where to put variables that belong to no other. Spec: TWR-18."""
        places = self._strategy.extended.non_slot_devices(var_list)
        return list(places) if isinstance(places, tuple) else places

    @property
    @old_spelling("extended.experimental_between_graph")
    def between_graph(self) -> bool:
        """Whether each worker runs the program. Spec: TWR-18."""
        return self._strategy.extended.experimental_between_graph

    @property
    @old_spelling("extended.experimental_should_init")
    def should_init(self) -> bool:
        """Whether this task initialises variables. Spec: TWR-18."""
        return self._strategy.extended.experimental_should_init

    @property
    @old_spelling("extended.should_checkpoint")
    def should_checkpoint(self) -> bool:
        """Whether this task writes checkpoints. Spec: TWR-18."""
        return self._strategy.extended.should_checkpoint

    @property
    @old_spelling("extended.should_save_summary")
    def should_save_summary(self) -> bool:
        """Whether this task writes summaries. Spec: TWR-18."""
        return self._strategy.extended.should_save_summary

    @old_spelling("nothing, as there is nothing to initialize,")
    def initialize(self) -> None:
        """Do nothing. Spec: TWR-17."""

    @old_spelling("nothing, as there is nothing to finalize,")
    def finalize(self) -> None:
        """Do nothing. Spec: TWR-17."""

    @old_spelling("update_config_proto, and a cluster resolver,")
    def configure(
        self,
        session_config: ConfigProto | None = None,
        cluster_spec: Any = None,
        task_type: str | None = None,
        task_id: int | None = None,
    ) -> None:
        """Do nothing. Spec: TWR-20."""

    @old_spelling("extended.colocate_vars_with")
    def colocate_vars_with(self, colocate_with_variable: Any) -> AbstractContextManager[Any]:
        """Return a scope whose variables go to the devices of another one."""
        where = as_places(colocate_with_variable)
        return self._strategy.extended.colocate_vars_with(where)


def as_places(places: Any) -> Any:
    """Return places as a `stratagem.Strategy` takes them: devices as a tuple, not a list."""
    return tuple(places) if isinstance(places, list) else places


_entered: WeakValueDictionary[Strategy, DistributionStrategy] = WeakValueDictionary()
"""For a strategy the object whose scope was entered."""

_WORDS = {
    "call_for_each_replica()": "call_for_each_tower()",
    "a ReplicaContext": "a TowerContext",
    "Mismatching ReplicaContext": "Mismatching tower context",
    "get_replica_context": "get_tower_context",
    "cross-replica": "cross-tower",
    "The replicas made": "Some towers made",
    "replica": "tower",
}


class DistributionStrategy(StrategyProperties, metaclass=ABCMeta):
    """A `stratagem.Strategy` behind the methods of TensorFlow 1.12.

    Between towers, its methods require its `scope()` to be open. In 1.13 this name was an alias of
    `Strategy`, so every `stratagem.Strategy` is an instance, too.

    Args:
        strategy: The strategy, with whose methods and functions these may be mixed.

    Spec: TWR-1 to TWR-20.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    @contextmanager
    def scope(self) -> Iterator[DistributionStrategy]:
        """Make this strategy the current one. Spec: TWR-1.

        Raises:
            ContextError: A tower is running, or another strategy is in charge.
        """
        with ExitStack() as stack:
            with in_tower_words():
                stack.enter_context(self._between_towers())
            announce(self)
            yield self

    def _between_towers(self) -> AbstractContextManager[object]:
        return self._strategy.scope()

    def _require_cross_tower(self, method: str) -> None:
        """Check that `method` is called in scope, between towers.

        Raises:
            ContextError: It is not. Spec: CTX-18, CTX-34, CTX-35, DEF-12.
        """
        require_strategy(self._strategy)
        if not in_cross_replica_context():
            raise ContextError(
                f"`{method}` of {self._strategy} requires being in cross-tower context; enter its "
                "scope, or in a tower use get_tower_context().merge_call()"
            )

    @old_spelling("Strategy.run")
    def call_for_each_tower(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `fn` once per tower and merge the results.

        The keyword `run_concurrently` says whether towers may overlap, as they may by default;
        False has them run one at a time, in their order.

        Spec: TWR-2.
        """
        self._require_cross_tower("call_for_each_tower")
        options = RunOptions(run_concurrently=kwargs.pop("run_concurrently", True))
        with in_tower_words():
            return self._run_towers(fn, args, kwargs, options)

    def _run_towers(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: RunOptions,
    ) -> Any:
        return self._strategy.run(fn, args, kwargs, options)

    @old_spelling("Strategy.reduce, or extended.reduce_to,")
    def reduce(self, aggregation: VariableAggregation, value: Any, destinations: Any) -> Any:
        """Reduce a value over towers.

        Args:
            aggregation: SUM, MEAN or ONLY_FIRST_TOWER.
            value: A value with one component per tower, or the result of `map`.
            destinations: A device, a list of them, a variable or a value.

        Raises:
            InvalidArgumentError: `aggregation` is another one, or a plain value other than 0 is to
                be summed over several towers.

        Spec: TWR-10, MS-11, OD-5.
        """
        self._require_cross_tower("reduce")
        return self._reduced(aggregation, value, destinations)

    def _reduced(self, aggregation: VariableAggregation, value: Any, destinations: Any) -> Any:
        return reduced(self._strategy, aggregation, value, destinations)

    @old_spelling("extended.batch_reduce_to")
    def batch_reduce(
        self, aggregation: VariableAggregation, value_destination_pairs: Iterable[tuple[Any, Any]]
    ) -> list[Any]:
        """Reduce several values. Spec: TWR-11."""
        self._require_cross_tower("batch_reduce")
        return [
            self._reduced(aggregation, value, destinations)
            for value, destinations in value_destination_pairs
        ]

    @old_spelling("extended.broadcast_to")
    def broadcast(self, tensor: Any, destinations: Any = None) -> Any:
        """Copy a tensor to devices, by default all of the towers'. Spec: TWR-12."""
        self._require_cross_tower("broadcast")
        return self._broadcast(tensor, destinations)

    def _broadcast(self, tensor: Any, destinations: Any) -> Any:
        everywhere = destinations is None
        places = self._worker_devices() if everywhere else destinations
        return spread(self._strategy, tensor, places)

    @old_spelling("extended.update")
    def update(self, var: Any, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `fn(var, *args, **kwargs)` where `var` is, to change it.

        The keyword `grouped` says whether to merge what `fn` returns; otherwise each leaf becomes
        the list of what it is on each device.

        Raises:
            InvalidTypeError: An argument may differ between towers.

        Spec: TWR-13.
        """
        self._require_cross_tower("update")
        return self._updated(self._strategy.extended.update, var, fn, args, kwargs)

    @old_spelling("extended.update_non_slot")
    def update_non_slot(
        self, colocate_with: Any, fn: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Run `fn(*args, **kwargs)` where `colocate_with` is; else as `update`."""
        self._require_cross_tower("update_non_slot")
        update = self._strategy.extended.update_non_slot
        return self._updated(update, as_places(colocate_with), fn, args, kwargs)

    def _updated(
        self,
        update: Callable[..., Any],
        where: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        grouped = kwargs.pop("grouped", True)
        select_replica_mirrored(0, (tuple(args), kwargs))
        result = update(where, fn, args, kwargs)
        return result if grouped else map_leaves(_components, result)

    @old_spelling("experimental_local_results")
    def unwrap(self, value: Any) -> list[Any]:
        """Return the components of `value`. Spec: TWR-14."""
        return self._unwrapped(value)

    def _unwrapped(self, value: Any) -> list[Any]:
        return _components(value)

    @old_spelling("Strategy.group")
    def group(self, value: Any, name: str | None = None) -> Any:
        """Return nothing of several components. Spec: TWR-15."""
        return self._strategy.group(value, name)

    @old_spelling("distribute_datasets_from_function")
    def distribute_dataset(self, dataset_fn: Callable[[], Any]) -> Any:
        """Deal the elements of a dataset to the towers.

        Args:
            dataset_fn: Returns the dataset; called now.

        Returns:
            An object with `make_one_shot_iterator()`.

        Raises:
            InvalidArgumentError: `dataset_fn` returns no dataset. Spec: TWR-16.
        """
        return self._distributed_dataset(dataset_fn)

    def _distributed_dataset(self, dataset_fn: Callable[[], Any]) -> Any:
        return PerDeviceDataset(self._strategy, dataset_fn)

    @old_spelling("extended.experimental_run_steps_on_iterator")
    def run_steps_on_dataset(
        self,
        fn: Callable[..., Any],
        iterator: InputIterator,
        iterations: int = 1,
        initial_loop_values: Any = None,
    ) -> MultiStepContext:
        """Call `fn(context, *inputs)` for several inputs, one after the other.

        Spec: MSC-1.
        """
        self._require_cross_tower("run_steps_on_dataset")
        return self._run_steps(unpacking(fn), iterator, iterations, initial_loop_values)

    def _run_steps(
        self, step: Step, iterator: InputIterator, iterations: int, initial_loop_values: Any
    ) -> MultiStepContext:
        run = self._strategy.extended.experimental_run_steps_on_iterator
        return MultiStepContext(run(step, iterator, iterations, initial_loop_values))

    @old_spelling("a loop")
    def map(
        self, map_over: Iterable[Any], fn: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Call `fn(element, *args, **kwargs)` for each element, where towers are.

        Returns:
            What `reduce` takes: a `MapOutput`, or with several devices a `PerReplica` of them, to
            which the elements go in turn.

        Spec: OD-5, MS-9.
        """
        self._require_cross_tower("map")
        return mapped(self._worker_devices(), map_over, fn, args, kwargs)

    @property
    @old_spelling("replica_id_in_sync_group of the replica context")
    def worker_device_index(self) -> Any:
        """The index of each tower's device; 0 where there is one.

        Spec: TWR-19, OD-7, MS-10.
        """
        self._require_cross_tower("worker_device_index")
        first = self._strategy.extended._first_replica_id
        indices = range(first, first + len(self._worker_devices()))
        return PerReplica(indices) if len(indices) > 1 else first


DistributionStrategy.register(Strategy)


def _components(value: Any) -> list[Any]:
    parts = components(value)
    return [value] if parts is None else list(parts)


def announce(strategy: DistributionStrategy) -> None:
    """Note that the scope of a strategy was entered by this object."""
    _entered[strategy._strategy] = strategy


def entered(strategy: Strategy) -> DistributionStrategy | None:
    """Return the object by which the scope of `strategy` was entered."""
    return _entered.get(strategy)


@contextmanager
def in_tower_words() -> Iterator[None]:
    """Scope whose errors about contexts speak of towers.

    Spec: CTX-30, CTX-31, CTX-35, TWR-3.
    """
    try:
        yield
    except ContextError as error:
        for word, tower_word in _WORDS.items():
            error.message = error.message.replace(word, tower_word)
        raise
