"""A strategy written by a user: one copy of each variable, two logical CPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import stratagem
from stratagem import Variable

HOME = "/job:localhost/replica:0/task:0/device:CPU:0"


def number() -> int:
    """Return the number of the running replica."""
    replica = stratagem.get_replica_context()
    assert replica is not None
    return int(replica.replica_id_in_sync_group or 0)


def shared(
    strategy: stratagem.Strategy,
    value: Any,
    aggregation: stratagem.VariableAggregation = stratagem.VariableAggregation.NONE,
) -> Variable:
    """Return a variable of `strategy`."""
    with strategy.scope():
        return Variable(value, aggregation=aggregation)


class TwoReplicas(stratagem.Strategy):
    """Variables on CPU:0, replicas on CPU:0 and CPU:1."""

    def __init__(self, replicas: int = 2) -> None:
        super().__init__(_Extended(self, replicas))


class _Extended(stratagem.StrategyExtended):
    def __init__(self, strategy: stratagem.Strategy, replicas: int) -> None:
        super().__init__(strategy)
        self._devices = tuple(HOME[:-1] + str(index) for index in range(replicas))

    @property
    def worker_devices(self) -> Sequence[str]:
        return self._devices

    @property
    def parameter_devices(self) -> Sequence[str]:
        return (HOME,)

    def _create_variable(self, next_creator: Callable[..., Variable], **kwargs: Any) -> Variable:
        variable = next_creator(device=HOME, **kwargs)
        return variable if len(self._devices) == 1 else self._share(variable)

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        return self._run_replicas(self._devices, fn, args, kwargs)

    def _reduce_to(
        self,
        reduce_op: stratagem.ReduceOp,
        value: Any,
        destinations: Any,
        options: stratagem.CommunicationOptions | None,
    ) -> Any:
        return self._reduce_nest(reduce_op, value, destinations)

    def _update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        return self._run_update(HOME, partial(fn, var), args, kwargs, group)

    def _update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        return self._run_update(HOME, fn, args, kwargs, group)

    def non_slot_devices(self, var_list: Sequence[Variable]) -> Variable:
        return min(var_list, key=lambda variable: variable.name)
