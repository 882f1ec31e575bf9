"""A strategy written by a user: one copy of each variable, two logical CPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import stratagem
from stratagem._options import CommunicationOptions
from stratagem._replicas.reduction import place, reduce_nest
from stratagem._replicas.threads import run_replicas
from stratagem._strategies.local_updates import LocalUpdates
from stratagem._variables.aggregating import AggregatingVariable
from stratagem._variables.creators import NextCreator
from stratagem._variables.variable import Variable

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


class _Extended(LocalUpdates):
    def __init__(self, strategy: stratagem.Strategy, replicas: int) -> None:
        super().__init__(strategy)
        self._replicas = replicas

    @property
    def worker_devices(self) -> Sequence[str]:
        return tuple(HOME[:-1] + str(index) for index in range(self._replicas))

    @property
    def parameter_devices(self) -> Sequence[str]:
        return (HOME,)

    def _create_variable(self, next_creator: NextCreator, **kwargs: Any) -> Variable:
        variable = next_creator(device=HOME, **kwargs)
        if self._replicas == 1:
            return variable
        return AggregatingVariable(self._container_strategy(), variable)

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        strategy, devices = self._container_strategy(), self.worker_devices
        return run_replicas(strategy, devices, fn, args, kwargs)

    def _reduce_to(
        self,
        reduce_op: stratagem.ReduceOp,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None,
    ) -> Any:
        return place(reduce_nest(reduce_op, value, self._replicas), destinations)
