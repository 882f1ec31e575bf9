"""What the strategies with a single replica share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from stratagem._core.enums import ReduceOp
from stratagem._core.options import CommunicationOptions, ValueContext
from stratagem._strategies.extended import StrategyExtended


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
