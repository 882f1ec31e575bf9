"""Values that a function makes for each replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratagem._core.options import ValueContext
from stratagem._core.values.regroup import regroup


def per_replica_values(
    value_fn: Callable[[ValueContext], Any], first: int, local: int, in_sync: int
) -> Any:
    """Call `value_fn` for each replica of this process, in replica order.

    Args:
        value_fn: Returns a nest; its leaves stay as they are.
        first: Number of this process's first replica among all.
        local: How many replicas this process has.
        in_sync: How many replicas there are in all.

    Returns:
        The nest with `PerReplica` as leaves, also if there is one replica.

    Raises:
        InvalidArgumentError: The nests differ in structure.

    Spec: INP-51, INP-52, VAL-10.
    """
    contexts = [ValueContext(first + index, in_sync) for index in range(local)]
    return regroup([value_fn(context) for context in contexts], always_wrap=True)
