"""What is passed to the `extended` of a strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from stratagem._core.values.distributed_values import DistributedValues
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy


def extended_strategy(container_strategy: Any) -> AnyStrategy:
    if not hasattr(container_strategy, "scope"):
        raise InvalidTypeError(
            "StrategyExtended extends a strategy and takes it as its argument, not "
            f"{container_strategy!r}; use the `extended` of a strategy, such as "
            "MirroredStrategy().extended"
        )
    strategy: AnyStrategy = container_strategy
    return strategy


def only_argument(value: Any) -> tuple[Any]:
    if isinstance(value, torch.Tensor | DistributedValues):
        return (value,)
    raise InvalidArgumentError(
        "`args` of `call_for_each_replica` must be a list or tuple, or a single tensor "
        f"or distributed value, not {type(value).__name__}; write args=(x,)"
    )
