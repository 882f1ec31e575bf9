"""Functions over lists, whose elements the devices share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stratagem._core import device_names
from stratagem._core.deprecation import old_spelling
from stratagem._core.values.distributed_values import PerReplica
from stratagem._core.values.regroup import select_replica_mirrored
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

    Returns:
        A `MapOutput`; with several devices a `PerReplica` of them.
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
    """Return `value`, of a map's result the outputs of all elements.

    Raises:
        InvalidArgumentError: A map's result is empty.
    """
    parts = value.values if isinstance(value, PerReplica) else (value,)
    if not any(isinstance(part, MapOutput) for part in parts):
        return value
    outputs = [output for part in parts for output in part._outputs]
    if not outputs:
        raise InvalidArgumentError("There is nothing to reduce: `map` was given no elements")
    return PerReplica(outputs)
