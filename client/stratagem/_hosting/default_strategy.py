"""The default strategy, and what the strategies with a single replica share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from stratagem._core import contexts
from stratagem._core.contexts import Scope, has_strategy, require_strategy
from stratagem._core.options import CommunicationOptions, InputContext, ReduceOp, ValueContext
from stratagem._core.replica_context import ReplicaContext
from stratagem._core.update_functions import smallest_by_name
from stratagem._core.variable_creation import NextCreator, creator_scope
from stratagem._core.variables import Variable
from stratagem._input.options import AutoShardPolicy, InputOptions
from stratagem._strategies.extended import StrategyExtended
from stratagem._strategies.strategy import Strategy
from stratagem_proto.errors import ContextError

if TYPE_CHECKING:
    from stratagem._input.sharding import InputWorker


class OneReplicaExtended(StrategyExtended):
    """Values of one replica are those of all: nothing is reduced or wrapped."""

    @property
    def _num_replicas_in_sync(self) -> int:
        return 1

    def _reduce_to(
        self,
        reduce_op: ReduceOp,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None,
    ) -> Any:
        return value

    def _gather(self, value: Any, axis: int) -> Any:
        return value

    def _local_results(self, value: Any) -> tuple[Any, ...]:
        return (value,)

    def _distribute_values_from_function(self, value_fn: Callable[[ValueContext], Any]) -> Any:
        return value_fn(ValueContext())

    def _update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        return self._update_non_slot(var, partial(fn, var), args, kwargs, group)


class _DefaultScope(Scope[Strategy]):
    """A scope that leaves the thread in the default context. Spec: CTX-14."""

    def __init__(self, strategy: Strategy) -> None:
        super().__init__(strategy)
        self._guards: list[creator_scope] = []

    def __enter__(self) -> Strategy:
        if has_strategy():
            raise ContextError(
                "Must not nest tf.distribute.Strategy scopes: the default strategy's "
                f"is entered within that of {contexts.get_strategy()}"
            )
        if not self._guards:
            self._require_unused()
        self._used = True
        guard = creator_scope(_create_by_default)
        guard.__enter__()
        self._guards.append(guard)
        return self._strategy

    def __exit__(self, *error: Any) -> None:
        self._guards[-1].__exit__(*error)
        self._guards.pop()


def _create_by_default(next_creator: NextCreator, **kwargs: Any) -> Variable:
    # Another strategy's scope may have been opened inside this one: CTX-15.
    if has_strategy():
        require_strategy(contexts.DEFAULT.strategy)
    return next_creator(**kwargs)


class _DefaultStrategy(Strategy):
    """One replica on whatever device torch uses. Spec: DEF-1 to DEF-11."""

    def __init__(self) -> None:
        if hasattr(contexts.DEFAULT, "strategy"):
            _refuse_second()
        super().__init__(_DefaultExtended(self))

    def scope(self, name: str | None = None) -> Scope[Any]:
        return _DefaultScope(self)

    def _implicit_scope(self) -> Scope[Any]:
        return self.scope()

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        _refuse_second()


def _refuse_second() -> NoReturn:
    raise ContextError(
        "Should only create a single instance of the default strategy; "
        "get_strategy() returns it outside of every scope"
    )


class _DefaultExtended(OneReplicaExtended):
    @property
    def worker_devices(self) -> NoReturn:
        raise _unsupported("worker_devices")

    @property
    def parameter_devices(self) -> NoReturn:
        raise _unsupported("parameter_devices")

    @property
    def should_checkpoint(self) -> bool:
        return True

    @property
    def should_save_summary(self) -> bool:
        return True

    def variable_created_in_scope(self, v: Variable) -> bool:
        return v.distribute_strategy is None

    def colocate_vars_with(self, colocate_with_variable: Any) -> AbstractContextManager[None]:
        super().colocate_vars_with(colocate_with_variable)
        return nullcontext()

    def _validate_colocate_with(self, colocate_with_variable: Any) -> None:
        if getattr(colocate_with_variable, "distribute_strategy", None) is not None:
            super()._validate_colocate_with(colocate_with_variable)

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        with ReplicaContext(self._container_strategy(), 0):
            return fn(*args, **kwargs)

    def _update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        device = getattr(colocate_with, "device_name", self._current_device())
        return self._run_update(device, fn, args, kwargs, group)

    def non_slot_devices(self, var_list: Sequence[Variable]) -> Any:
        return smallest_by_name(var_list)

    def _input_worker(self) -> InputWorker:
        # Late: not every program has a strategy read its data.
        from stratagem._input.sharding import InputWorker

        return InputWorker(InputContext(), (None,))

    def _distribute_dataset(
        self, dataset: Any, options: InputOptions | None, auto_shard_policy: AutoShardPolicy | int
    ) -> Any:
        return dataset

    def _distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None
    ) -> Any:
        return dataset_fn(InputContext())


def _unsupported(member: str) -> ContextError:
    return ContextError(
        f"{member} is unsupported by the default strategy; enter the scope of a strategy first"
    )


class _DefaultReplicaContext(ReplicaContext):
    """The replica that runs outside of every scope."""

    @property
    def replica_id_in_sync_group(self) -> int:
        """A plain 0. Spec: REP-2."""
        return 0


def install() -> None:
    """Put the default strategy in charge of this process."""
    strategy = _DefaultStrategy()
    contexts.DEFAULT.strategy = strategy
    contexts.DEFAULT.replica_context = _DefaultReplicaContext(strategy, 0)
