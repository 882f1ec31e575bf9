"""What strategies whose replicas are in this process are made of."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stratagem._core.distributed_values import place
from stratagem._core.distributed_variables import AggregatingVariable
from stratagem._core.options import ReduceOp
from stratagem._core.reduction import reduce_nest
from stratagem._core.replica_threads import run_replicas
from stratagem._core.update_functions import run_update
from stratagem._core.variables import Variable
from stratagem._strategies.multi_step import GivesInputs, MultiStepContext, run_steps
from stratagem_proto.errors import InvalidArgumentError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy


class StrategyPrimitives:
    """The operations that hooks of a strategy are usually one call of.

    They are for authors of strategies, to be called by the hooks of `StrategyExtended`, not
    overridden.
    """

    _container: weakref.ref[AnyStrategy]

    if TYPE_CHECKING:

        @property
        def _num_local_replicas(self) -> int: ...

        def _after_replicas(self) -> None: ...

    def _container_strategy(self) -> AnyStrategy:
        strategy = self._container()
        if strategy is None:
            raise InvalidArgumentError(
                f"The strategy of this {type(self).__name__} has been collected; keep "
                "a reference to the strategy as long as you use `extended`"
            )
        return strategy

    def _run_replicas(
        self,
        devices: Sequence[str],
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call `fn` once per device, for `_call_for_each_replica`.

        Of distributed values each replica gets its component; what the replicas return is merged,
        and they may make merge calls. Spec: RUN-1 to RUN-7.
        """
        try:
            return run_replicas(self._container_strategy(), devices, fn, args, kwargs)
        finally:
            self._after_replicas()

    def _share(self, variable: Variable) -> Variable:
        """Return what all replicas share of a variable, for `_create_variable`.

        What several replicas write is reduced by `_reduce_to`, as the variable's aggregation says,
        and written once. Spec: VAR-4.
        """
        return AggregatingVariable(self._container_strategy(), variable)

    def _reduce_nest(self, reduce_op: ReduceOp, value: Any, destinations: Any) -> Any:
        """Reduce a nest in replica order, for `_reduce_to`. Spec: EXT-1."""
        return reduce_nest(reduce_op, value, destinations, self._num_local_replicas)

    def _place_value(self, value: Any, destinations: Any) -> Any:
        """Copy tensors of a nest to the destinations, for `_broadcast_to`.

        Several destinations, as of distributed values, give `Mirrored`. Other leaves stay as they
        are. Spec: EXT-1, EXT-3.
        """
        return place(value, destinations)

    def _run_update(
        self,
        device: str,
        call: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        """Call a function on the one copy of a variable, for `_update`.

        Args:
            device: Where the variable is.
            call: The function, with the variable already bound to it.
            args: Positional arguments; mirrored ones are unwrapped.
            kwargs: Keyword arguments, likewise.
            group: Whether to return the result as it is; otherwise each leaf becomes a tuple of
                one.

        Raises:
            InvalidArgumentError: An argument differs between replicas. Spec: EXT-4.
        """
        strategy = self._container_strategy()
        return run_update(strategy, device, call, args, kwargs, group)

    def _run_steps(
        self,
        fn: Callable[[MultiStepContext, Any], Any],
        iterator: GivesInputs,
        iterations: int,
        initial_loop_values: Any,
    ) -> MultiStepContext:
        """Loop, for `_experimental_run_steps_on_iterator`. Spec: MSC-2 to MSC-12."""
        strategy = self._container_strategy()
        return run_steps(strategy, fn, iterator, iterations, initial_loop_values)
