"""Reductions that a `VariableAggregation` names."""

from __future__ import annotations

from typing import Any

from stratagem._core.enums import ReduceOp, VariableAggregation
from stratagem._core.values.distributed_values import DistributedValues
from stratagem._core.values.placement import components
from stratagem._core.values.reduction import combine
from stratagem._strategies.strategy import Strategy
from stratagem.contrib._map_output import with_all_outputs
from stratagem_proto.errors import InvalidArgumentError


def reduced(
    strategy: Strategy, aggregation: VariableAggregation, value: Any, destinations: Any
) -> Any:
    """Reduce over towers.

    Args:
        strategy: The strategy.
        aggregation: SUM, MEAN or ONLY_FIRST_TOWER.
        value: A value with one component per tower, or the result of a map.
        destinations: As for `extended.reduce_to`, or a list of devices.

    Raises:
        InvalidArgumentError: `aggregation` is another one, or a plain value other than 0 is to be
            summed over several towers.

    Spec: TWR-10, MS-11, OD-5.
    """
    outputs = with_all_outputs(value)
    _require_reduction(aggregation, mapped=outputs is not value)
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        parts = components(value)
        return value if parts is None else spread(strategy, parts[0], destinations)
    if isinstance(value, int | float) and value == 0:
        return value
    op = ReduceOp.from_variable_aggregation(aggregation)
    if outputs is not value:
        return spread(strategy, combine(op, outputs.values), destinations)
    several = isinstance(destinations, list | tuple)
    total = strategy.extended.reduce_to(op, value, destinations[0] if several else destinations)
    return spread(strategy, total, destinations) if several else total


def spread(strategy: Strategy, tensor: Any, destinations: Any) -> Any:
    """Copy a tensor to the destinations. Spec: TWR-12."""
    return strategy.extended.broadcast_to(tensor, _as_one(destinations))


def placed(strategy: Strategy, tensor: Any, destinations: Any) -> Any:
    """Copy a tensor to devices, which need not be the strategy's."""
    return strategy.extended._place_value(tensor, _as_one(destinations))


def _as_one(destinations: Any) -> Any:
    several = isinstance(destinations, list | tuple)
    return DistributedValues(destinations) if several else destinations


def _require_reduction(aggregation: object, mapped: bool) -> None:
    known = [VariableAggregation.SUM, VariableAggregation.MEAN]
    if not mapped:
        known.append(VariableAggregation.ONLY_FIRST_REPLICA)
    if aggregation not in known:
        raise InvalidArgumentError(
            f"{aggregation!r} names no reduction; use {', '.join(map(str, known))}"
        )
