"""What is passed to the `extended` of a strategy."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from stratagem._core.distributed_values import DistributedValues, refused_destinations
from stratagem._core.nests import opened
from stratagem._core.options import RunOptions
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy


def container(container_strategy: Any) -> weakref.ref[AnyStrategy]:
    """Return a weak reference to the strategy that is extended."""
    if not hasattr(container_strategy, "scope"):
        raise InvalidTypeError(
            "StrategyExtended extends a strategy and takes it as its argument, not "
            f"{container_strategy!r}; use the `extended` of a strategy, such as "
            "MirroredStrategy().extended"
        )
    return weakref.ref(container_strategy)


def only_argument(value: Any) -> tuple[Any]:
    if isinstance(value, torch.Tensor | DistributedValues):
        return (value,)
    raise InvalidArgumentError(
        "`args` of `call_for_each_replica` must be a list or tuple, or a single tensor "
        f"or distributed value, not {type(value).__name__}; write args=(x,)"
    )


def require_function(method: str, fn: Any) -> None:
    """Raise InvalidTypeError for what cannot be called."""
    if not callable(fn):
        raise InvalidTypeError(f"`{method}` takes a function to call, not {type(fn).__name__}")


def require_call(method: str, fn: Any, args: Any, kwargs: Any) -> None:
    """Raise InvalidTypeError for what cannot be called as `fn(*args, **kwargs)`."""
    require_function(method, fn)
    if not isinstance(args, list | tuple):
        raise InvalidTypeError(
            f"`args` of `{method}` must be a list or tuple, not "
            f"{type(args).__name__}; write args=(x,) for a single argument"
        )
    if not isinstance(kwargs, Mapping):
        raise InvalidTypeError(
            f"`kwargs` of `{method}` must be a dictionary, not {type(kwargs).__name__}"
        )


def require_pairs(pairs: Any) -> None:
    """Raise InvalidTypeError for anything but pairs of a value and a destination."""
    if not isinstance(pairs, Sequence) or not all(_is_pair(pair) for pair in pairs):
        raise InvalidTypeError(
            f"`batch_reduce_to` takes a list of pairs (value, destinations), not {pairs!r}"
        )
    for value, destinations in pairs:
        require_one(destinations, value)


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list | tuple) and len(pair) == 2


def require_one(destinations: Any, value: Any) -> None:
    """Raise InvalidArgumentError for what is not one place, nor the value itself."""
    if isinstance(destinations, list | tuple) or not (
        destinations is value or _is_somewhere(destinations)
    ):
        raise refused_destinations(destinations)


def _is_somewhere(destinations: Any) -> bool:
    if destinations is None or opened(destinations) is not None:
        return True
    is_named = isinstance(destinations, str | torch.device)
    return is_named or any(hasattr(destinations, name) for name in ("device", "values"))


def require_options(options: Any) -> None:
    """Raise InvalidTypeError for no `RunOptions`; warn of those that do nothing."""
    if options is None:
        return
    if not isinstance(options, RunOptions):
        raise InvalidTypeError(
            f"`options` of `run` must be RunOptions(...), not {type(options).__name__}"
        )
    options.warn_of_no_effect()
