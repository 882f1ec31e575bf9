"""Values of towers: what `map` gives, and how values are reduced and placed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stratagem._core import device_names
from stratagem._core.distributed_values import (
    DistributedValues,
    PerReplica,
    components,
    select_replica_mirrored,
)
from stratagem._core.options import ReduceOp, VariableAggregation, old_spelling
from stratagem._core.reduction import combine
from stratagem._strategies.strategy import Strategy
from stratagem_proto.errors import InvalidArgumentError


class MapOutput:
    """What `DistributionStrategy.map` returned for the elements of one device.

    Args:
        outputs: One for each element.

    Spec: OD-5, MS-9.
    """

    def __init__(self, outputs: Iterable[Any]) -> None:
        self._outputs = list(outputs)

    @old_spelling("a list")
    def get(self) -> list[Any]:
        """Return the outputs, in the order of the elements."""
        return self._outputs


def mapped(
    devices: Sequence[str],
    map_over: Iterable[Any],
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call `fn` with each element, on one device after the other.

    Returns a `MapOutput`; with several devices a `PerReplica` of them.
    """
    outputs: list[list[Any]] = [[] for _ in devices]
    for number, element in enumerate(map_over):
        index = number % len(devices)
        mine = select_replica_mirrored(index, (tuple(args), dict(kwargs)))
        with device_names.device(devices[index]):
            outputs[index].append(fn(element, *mine[0], **mine[1]))
    results = [MapOutput(each) for each in outputs]
    return results[0] if len(results) == 1 else PerReplica(results)


def with_all_outputs(value: Any) -> Any:
    """Return `value`, of a map's result the outputs of all elements, if there are any."""
    parts = value.values if isinstance(value, PerReplica) else (value,)
    if not any(isinstance(part, MapOutput) for part in parts):
        return value
    outputs = [output for part in parts for output in part._outputs]
    if not outputs:
        raise InvalidArgumentError("There is nothing to reduce: `map` was given no elements")
    return PerReplica(outputs)


def reduced(
    strategy: Strategy, aggregation: VariableAggregation, value: Any, destinations: Any
) -> Any:
    """Reduce a value of towers, or the result of a map, to destinations.

    These are as for `extended.reduce_to`, or a list of devices.

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
