"""Where a thread stands among towers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from stratagem._core import device_names
from stratagem._core.contexts import (
    DEFAULT,
    has_strategy,
    in_cross_replica_context,
    require_replica,
)
from stratagem._core.options import old_spelling
from stratagem._core.replica_context import ReplicaContext, get_replica_context
from stratagem._core.variables import Variable
from stratagem._strategies.strategy import Strategy, get_strategy
from stratagem.contrib._strategies import DefaultStrategy
from stratagem.contrib._strategy import DistributionStrategy, entered, in_tower_words


@dataclass(frozen=True)
class TowerContext:
    """The running tower, got by `get_tower_context()`: a replica context as of TensorFlow 1.12.

    Spec: REP-11, TWR-3.
    """

    _replica: ReplicaContext

    @old_spelling("ReplicaContext.merge_call")
    def merge_call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `fn(strategy, *args, **kwargs)` once for all towers.

        Raises:
            ContextError: This is not the running tower, or the towers make different numbers of
                merge calls.

        Spec: TWR-3, CTX-30, CTX-31.
        """

        def merge(strategy: Strategy, *merged: Any, **merged_kwargs: Any) -> Any:
            return fn(_tower_strategy(strategy), *merged, **merged_kwargs)

        with in_tower_words():
            return self._replica.merge_call(merge, args, kwargs)

    @property
    @old_spelling("num_replicas_in_sync == 1")
    def is_single_tower(self) -> bool:
        """Whether there is one tower."""
        self._require_running()
        return self._replica.num_replicas_in_sync == 1

    @property
    @old_spelling("ReplicaContext.num_replicas_in_sync")
    def num_towers(self) -> int:
        """The number of towers."""
        return self._replica.num_replicas_in_sync

    @property
    @old_spelling("ReplicaContext.replica_id_in_sync_group")
    def tower_id(self) -> int:
        """The tower's number. Spec: CTX-A16."""
        self._require_running()
        number = self._replica.replica_id_in_sync_group
        return 0 if number is None else int(number)

    @property
    @old_spelling("ReplicaContext.strategy")
    def distribution_strategy(self) -> DistributionStrategy:
        """The strategy that runs the tower."""
        return _tower_strategy(cast("Strategy", self._replica.strategy))

    @property
    @old_spelling("Variable.device_name, or torch.Tensor.device,")
    def device(self) -> str:
        """The device of the tower."""
        self._require_running()
        return device_names.current()

    def _require_running(self) -> None:
        with in_tower_words():
            require_replica(self._replica)


def _tower_strategy(strategy: Strategy) -> DistributionStrategy:
    if strategy is DEFAULT.strategy:
        return entered(strategy) or DefaultStrategy(strategy)
    return entered(strategy) or DistributionStrategy(strategy)


def _cross_tower_strategy() -> DistributionStrategy | None:
    return _tower_strategy(get_strategy()) if in_cross_replica_context() else None


@old_spelling("get_replica_context")
def get_tower_context() -> TowerContext | None:
    """Return the running tower, None between towers."""
    replica = get_replica_context()
    return None if replica is None else TowerContext(replica)


@old_spelling("in_cross_replica_context and get_strategy")
def get_cross_tower_context() -> DistributionStrategy | None:
    """Return the current strategy between towers, None in one."""
    return _cross_tower_strategy()


@old_spelling("in_cross_replica_context and get_strategy")
def get_cross_replica_context() -> DistributionStrategy | None:
    """Return the current strategy between replicas, None in one; the name of 1.13."""
    return _cross_tower_strategy()


@old_spelling("in_cross_replica_context")
def in_cross_tower_context() -> bool:
    """Return whether this thread is between towers."""
    return in_cross_replica_context()


@old_spelling("get_strategy")
def get_distribution_strategy() -> DistributionStrategy:
    """Return the current strategy."""
    return _tower_strategy(get_strategy())


@old_spelling("has_strategy")
def has_distribution_strategy() -> bool:
    """Return whether the current strategy is another than the default one."""
    return has_strategy()


@old_spelling("extended.update with Variable.assign_add")
def increment_var(v: Variable, amount: Any = 1) -> Any:
    """Add to a variable, once for all towers. Spec: TWR-21.

    Args:
        v: The variable.
        amount: What to add.
    """

    def add(component: Variable) -> Any:
        return component.assign_add(amount, read_value=False)

    def merge(strategy: Strategy, variable: Variable) -> Any:
        return strategy.extended.update(variable, add)

    replica = get_replica_context()
    if replica is None:
        return get_strategy().extended.update(v, add)
    return replica.merge_call(merge, (v,))
