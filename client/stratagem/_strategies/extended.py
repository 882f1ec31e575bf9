"""The part of a strategy for libraries and for authors of strategies."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from stratagem._core.contexts import (
    current_context,
    entered,
    require_cross_replica_or_default,
    require_strategy,
)
from stratagem._core.distributed_values import (
    DistributedValues,
    marked,
    refused_destinations,
    replicas_without_rows,
    running_without_rows,
)
from stratagem._core.names import UniqueNames, form_of
from stratagem._core.nests import opened
from stratagem._core.options import ReduceOp, RunOptions, destined_reduce_op_from
from stratagem._core.replica_context import get_replica_context
from stratagem._core.scalars import Scalars
from stratagem._core.update_functions import (
    has_differing_copies,
    require_equal_copies,
    require_same_everywhere,
)
from stratagem._core.variable_creation import NextCreator, VariableTraits, creator_scope
from stratagem._core.variables import Variable
from stratagem._input.reader import NumpyDataset
from stratagem._strategies.hooks import StrategyHooks
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError
from stratagem_proto.protocol import check_name

if TYPE_CHECKING:
    from stratagem._core.options import CommunicationOptions
    from stratagem._input.iterator import DistributedIterator
    from stratagem._strategies.multi_step import MultiStepContext
    from stratagem._strategies.strategy import Strategy


def require_function(method: str, fn: Any) -> None:
    """Raise InvalidTypeError for what cannot be called."""
    if not callable(fn):
        raise InvalidTypeError(f"`{method}` takes a function to call, not {type(fn).__name__}")


def require_call(method: str, fn: Any, args: Any, kwargs: Any) -> None:
    """Raise InvalidTypeError for what cannot be called as `fn(*args, **kwargs)`."""
    if not callable(fn):
        require_function(method, fn)
    if not isinstance(args, list | tuple):
        raise InvalidTypeError(
            f"`args` of `{method}` must be a list or tuple, not "
            f"{type(args).__name__}; write args=(x,) for a single argument"
        )
    if not isinstance(kwargs, Mapping):
        raise InvalidTypeError(
            f"`kwargs` of `{method}` must be a dictionary, not {type(kwargs).__name__}"
        )


def require_pairs(pairs: Any) -> None:
    """Raise InvalidTypeError for anything but pairs of a value and a destination."""
    if not isinstance(pairs, Sequence) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs
    ):
        raise InvalidTypeError(
            f"`batch_reduce_to` takes a list of pairs (value, destinations), not {pairs!r}"
        )
    for value, destinations in pairs:
        require_one(destinations, value)


def require_one(destinations: Any, value: Any) -> None:
    """Raise InvalidArgumentError for what is not one place, nor the value itself."""
    is_somewhere = (
        destinations is value
        or destinations is None
        or opened(destinations) is not None
        or isinstance(destinations, str | torch.device)
        or any(hasattr(destinations, name) for name in ("device", "values"))
    )
    if isinstance(destinations, list | tuple) or not is_somewhere:
        raise refused_destinations(destinations)


def require_options(options: Any) -> None:
    """Raise InvalidTypeError for no `RunOptions`; warn of those that do nothing."""
    if options is None:
        return
    if not isinstance(options, RunOptions):
        raise InvalidTypeError(
            f"`options` of `run` must be RunOptions(...), not {type(options).__name__}"
        )
    options.warn_of_no_effect()


class StrategyExtended(StrategyHooks):
    """What a strategy does, behind `strategy.extended`.

    A public method checks the context, enters the scope where it has to, and calls the protected
    method of the same name. Subclass it to write a strategy, override the protected methods, and
    pass an instance to `Strategy.__init__`.

    Args:
        container_strategy: The strategy; only a weak reference is kept.

    Raises:
        InvalidTypeError: There is no strategy: nobody is extended.
    """

    def __init__(self, container_strategy: Strategy | None = None) -> None:
        if container_strategy is None or not hasattr(container_strategy, "scope"):
            raise InvalidTypeError(
                "StrategyExtended extends a strategy and takes it as its argument, not "
                f"{container_strategy!r}; use the `extended` of a strategy, such as "
                "MirroredStrategy().extended"
            )
        self._container = weakref.ref(container_strategy)
        self._names = UniqueNames()
        self._scalars = Scalars()

    if TYPE_CHECKING:

        def _container_strategy(self) -> Strategy: ...

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call `fn` once per replica and merge the results.

        Args:
            fn: The replica function.
            args: Positional arguments, a list or a tuple, or a single tensor or distributed value;
                each replica gets its components.
            kwargs: Keyword arguments, likewise.

        Raises:
            InvalidArgumentError: `args` is none of these.
            ContextError: A replica is running, or another strategy is in charge.

        Spec: EXT-14, CTX-17.
        """
        require_cross_replica_or_default(self, "run")
        if not isinstance(args, list | tuple):
            if not isinstance(args, torch.Tensor | DistributedValues):
                raise InvalidArgumentError(
                    "`args` of `call_for_each_replica` must be a list or tuple, or a single tensor "
                    f"or distributed value, not {type(args).__name__}; write args=(x,)"
                )
            args = (args,)
        require_call("run", fn, args, kwargs or {})
        empty: tuple[int, ...] = ()
        if args or kwargs:
            given = (args, kwargs) if kwargs else args
            # The only replica of this process, in sync with others, gets tensors as they are.
            is_one_of_several = self._num_local_replicas == 1 < self._num_replicas_in_sync
            empty = replicas_without_rows(given, not is_one_of_several)
        with entered(self._container_strategy()), running_without_rows(empty):
            results = self._run(fn, args, kwargs or {})
        return marked(results, empty) if empty else results

    def _run(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        self._before_run()
        result = self._call_for_each_replica(fn, args, kwargs)
        if self._hosting is not None:
            self._hosting.ran()
        return result

    def experimental_make_numpy_dataset(
        self, numpy_input: Any, session: object = None
    ) -> NumpyDataset:
        """Return a dataset of the rows of arrays.

        Args:
            numpy_input: A nest of arrays of shape [rows, ...]; a list of arrays is stacked to one.
            session: Accepted and ignored.

        Returns:
            A map-style `Dataset`, to be batched by a `DataLoader`.

        Raises:
            InvalidArgumentError: The arrays differ in their numbers of rows, or have none.
            ContextError: A replica is running, or another strategy is in charge.

        Spec: EXT-18, INP-50.
        """
        require_cross_replica_or_default(self, "experimental_make_numpy_dataset")
        return NumpyDataset(numpy_input)

    def experimental_run_steps_on_iterator(
        self,
        fn: Callable[[MultiStepContext, Any], Any],
        iterator: DistributedIterator,
        iterations: int = 1,
        initial_loop_values: Any = None,
    ) -> MultiStepContext:
        """Call a step for several inputs, one after the other.

        Args:
            fn: The step, called in cross-replica context with a `MultiStepContext` and one input,
                however nested; it usually calls `run`.
            iterator: Gives an input for each step.
            iterations: How many steps.
            initial_loop_values: None; or a nest of values of the outputs before the first step. Of
                a mapping, steps find them in `last_step_outputs`.

        Returns:
            The context, with what the last step has set.

        Raises:
            OutOfRangeError: The data have ended.
            InvalidArgumentError: There are not as many `initial_loop_values` as outputs.
            UnimplementedError: The strategy has no such loops.
            ContextError: A replica is running, or another strategy is in charge.

        Spec: EXT-19, CTX-A8, MSC-2 to MSC-13.
        """
        require_cross_replica_or_default(self, "experimental_run_steps_on_iterator")
        with entered(self._container_strategy()):
            return self._experimental_run_steps_on_iterator(
                fn, iterator, iterations, initial_loop_values
            )

    def _create_in_scope(self, next_creator: NextCreator, **kwargs: Any) -> Any:
        strategy = self._container_strategy()
        require_strategy(strategy)
        asked = ("name", "trainable", "synchronization", "aggregation")
        traits = VariableTraits.with_defaults(*(kwargs.get(key) for key in asked))
        name = self._names.choose(traits.name)
        # Servers refuse other names, and a program is to run under every strategy.
        check_name(name)
        kwargs |= vars(traits) | {"name": name}
        variable = self._create_variable(next_creator, **kwargs)
        variable._join(strategy)
        if self._names.origin(name) is None:
            self._names.describe(name, form_of(variable.dtype, variable.shape))
        self._names.record(name, variable)
        self._names.end_batch()
        if self._hosting is not None:
            self._hosting.created(variable)
        return variable

    def variable_created_in_scope(self, v: Variable) -> bool:
        """Return whether this strategy created `v`. Spec: EXT-9.

        Raises:
            InvalidTypeError: `v` is no variable.
        """
        if not hasattr(v, "distribute_strategy"):
            raise InvalidTypeError(f"`variable_created_in_scope` takes a Variable, not {v!r}")
        return v.distribute_strategy is self._container_strategy()

    def colocate_vars_with(self, colocate_with_variable: Any) -> AbstractContextManager[None]:
        """Return a scope whose variables go to the devices of another one.

        Args:
            colocate_with_variable: A variable of this strategy, or what `non_slot_devices`
                returned.

        Raises:
            ContextError: The strategy's scope is not open.
            InvalidArgumentError: The variable belongs to another strategy.

        Spec: EXT-10.
        """
        require_strategy(self._container_strategy())
        self._validate_colocate_with(colocate_with_variable)

        def colocated(next_creator: NextCreator, **kwargs: Any) -> Variable:
            kwargs.setdefault("colocate_with", colocate_with_variable)
            return next_creator(**kwargs)

        return creator_scope(colocated)

    def value_container(self, value: Any) -> Any:
        """Return the distributed variable that `value` is a component of.

        Any other value is returned as it is. Spec: EXT-8.
        """
        container = value.container if isinstance(value, Variable) else None
        return value if container is None else container

    def read_var(self, v: Any) -> Any:
        """Return a snapshot of a variable, or of any tensor.

        Raises:
            InvalidArgumentError: The strategy keeps copies of its variables, and `v` is not one of
                them.

        Spec: EXT-15.
        """
        return v.read_value() if isinstance(v, Variable) else torch.as_tensor(v).clone()

    def reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None = None,
    ) -> Any:
        """Reduce a value over replicas and copy the result to `destinations`.

        Args:
            reduce_op: The reduction.
            value: Nest of distributed values; a plain leaf counts as equal on all replicas, so that
                its mean is itself and its sum is refused.
            destinations: A device, a variable, or distributed values, meaning the devices of all
                their components; `value` itself for an all-reduce.
            options: Hints for the communication.

        Returns:
            Tensors, or `Mirrored` values where there are several destinations.

        Raises:
            ContextError: A replica is running, or another strategy is in charge.
            InvalidArgumentError: The reduction or the destinations are none, or the components
                cannot be reduced.

        Spec: EXT-1, RED-5 to RED-23.
        """
        require_cross_replica_or_default(self, "reduce_to")
        op = destined_reduce_op_from(reduce_op)
        require_one(destinations, value)
        return self._reduce_to(op, value, destinations, options)

    def batch_reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """Carry out several `reduce_to` at once.

        Args:
            reduce_op: The reduction of all of them.
            value_destination_pairs: Values and destinations.
            options: Hints for the communication.

        Returns:
            The results in the order of the pairs.

        Raises:
            ContextError: As for `reduce_to`.
            InvalidArgumentError: As for `reduce_to`.

        Spec: EXT-2.
        """
        require_cross_replica_or_default(self, "batch_reduce_to")
        op = destined_reduce_op_from(reduce_op)
        require_pairs(value_destination_pairs)
        return self._batch_reduce_to(op, value_destination_pairs, options)

    def broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """Copy a tensor to `destinations`.

        Args:
            tensor: The tensor, or a variable; a Python number is returned as it is.
            destinations: As for `reduce_to`.

        Returns:
            The tensor there, or `Mirrored` where there are several destinations.

        Raises:
            ContextError: A replica is running, or another strategy is in charge.
            InvalidArgumentError: The destinations are none.

        Spec: EXT-3.
        """
        require_cross_replica_or_default(self, "broadcast_to")
        require_one(destinations, tensor)
        if destinations is None:
            raise refused_destinations(destinations)
        return self._broadcast_to(tensor, destinations)

    def update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Run `fn(var, *args, **kwargs)` where `var` is, to change it.

        In a replica context this is a merge call, which all replicas have to make; where each has a
        copy of `var`, `fn` gets the arguments of its own replica. What it writes has to be the same
        for each copy all the same: combine gradients by `all_reduce` first.

        Args:
            var: The variable.
            fn: The function; it runs without recording gradients.
            args: Further positional arguments; mirrored ones are unwrapped.
            kwargs: Keyword arguments, likewise.
            group: Whether to merge what `fn` returns; otherwise each leaf becomes the tuple of what
                it is on each component.

        Raises:
            InvalidArgumentError: `var` is no variable of the strategy, or an argument differs
                between replicas, or copies of a mirrored variable would part. These have what the
                first one has then.
            ContextError: Another strategy is in charge.

        Spec: EXT-4, EXT-5.
        """
        kwargs = kwargs or {}
        require_call("update", fn, args, kwargs)
        context = current_context()
        if context is not None and context.replica_context is not None:
            return self._update_from_replica(var, fn, args, kwargs, group)
        require_cross_replica_or_default(self, "update")
        require_same_everywhere((args, kwargs))
        with entered(self._container_strategy()):
            if not has_differing_copies(var):
                require_equal_copies((args, kwargs))
            return self._update(var, fn, args, kwargs, group)

    def _update_from_replica(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        require_strategy(self._container_strategy())

        def merge(_: Strategy, *merged: Any, **merged_kwargs: Any) -> Any:
            return self._update(var, fn, merged, merged_kwargs, group)

        replica_context = get_replica_context()
        assert replica_context is not None
        return replica_context.merge_call(merge, args, kwargs)

    def update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Run `fn(*args, **kwargs)` on the devices of non-slot variables.

        Args:
            colocate_with: What `non_slot_devices` returned: a variable, or a tuple of devices where
                each variable has a copy on several.
            fn: The function; it runs without recording gradients.
            args: Positional arguments; mirrored ones are unwrapped.
            kwargs: Keyword arguments, likewise.
            group: As for `update`.

        Raises:
            InvalidArgumentError: An argument differs between replicas.
            InvalidTypeError: `colocate_with` is nothing that the strategy's `non_slot_devices`
                returns.
            ContextError: A replica is running, or another strategy is in charge.

        Spec: EXT-6.
        """
        require_cross_replica_or_default(self, "update_non_slot")
        kwargs = kwargs or {}
        require_call("update_non_slot", fn, args, kwargs)
        require_same_everywhere((args, kwargs))
        with entered(self._container_strategy()):
            return self._update_non_slot(colocate_with, fn, args, kwargs, group)
