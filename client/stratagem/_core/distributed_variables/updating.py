"""Running update functions on a variable that has one copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from stratagem._core import device_names
from stratagem._core.contexts.context import updating
from stratagem._core.tensors.nests import map_leaves
from stratagem._core.values.distributed_values import PerReplica
from stratagem._core.values.regroup import regroup_updates, select_component, select_replica
from stratagem_proto.errors import InvalidArgumentError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy
    from stratagem._core.variables.variable import Variable


def run_update(
    strategy: AnyStrategy,
    device: str,
    call: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    group: bool,
) -> Any:
    """Call an update function in update context, without recording gradients.

    Args:
        strategy: The strategy, current in this thread, in cross-replica context.
        device: Where the variable is; the current device of the function.
        call: The function, with the variable already bound to it.
        args: Positional arguments; mirrored ones are unwrapped, and of tensors that replicas gave
            and that are equal the first is taken.
        kwargs: Keyword arguments, likewise.
        group: Whether to return the result as it is; otherwise each leaf becomes a tuple of one.

    Raises:
        InvalidArgumentError: An argument differs between replicas.

    Spec: CTX-4, EXT-4, REG-12.
    """
    given = map_leaves(_first_of_equals, (tuple(args), kwargs))
    require_same_everywhere(given)
    args, kwargs = select_replica(0, given)
    with updating(strategy), device_names.device(device), torch.no_grad():
        result = call(*args, **kwargs)
    return result if group else regroup_updates([result], group)


def run_updates(
    strategy: AnyStrategy,
    devices: Sequence[str],
    calls: Sequence[Callable[..., Any]],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    group: bool,
) -> Any:
    """Call an update function once per copy, each in the update context of its copy.

    Args:
        strategy: The strategy, current in this thread, in cross-replica context.
        devices: Where the copies are.
        calls: The function, with each copy already bound to it.
        args: Positional arguments; of distributed values and variables each call gets its
            component.
        kwargs: Keyword arguments, likewise.
        group: Whether to merge the results to mirrored values; otherwise each leaf becomes the
            tuple of what it is for each copy.

    Spec: CTX-4, EXT-4, EXT-6, REG-12.
    """
    results = []
    for index, (device, call) in enumerate(zip(devices, calls, strict=True)):
        mine = map_leaves(partial(select_component, index), (tuple(args), kwargs))
        with updating(strategy, index), device_names.device(device), torch.no_grad():
            results.append(call(*mine[0], **mine[1]))
    return regroup_updates(results, group)


def require_same_everywhere(nest: Any) -> None:
    """Check that update functions may be called with `nest`.

    Raises:
        InvalidArgumentError: A leaf differs between replicas. Spec: EXT-4.
    """

    def check(leaf: Any) -> None:
        if isinstance(leaf, PerReplica):
            raise InvalidArgumentError(
                f"`update` cannot take {leaf!r}, which differs between replicas; "
                "combine it by reduce_to() first"
            )

    map_leaves(check, nest)


def _first_of_equals(leaf: Any) -> Any:
    # Each replica has a tensor of its own of what they reduced together.
    values = leaf.values if isinstance(leaf, PerReplica) else ()
    if not values or not all(isinstance(value, torch.Tensor) for value in values):
        return leaf
    first, *others = (value.detach() for value in values)
    return first if all(_are_equal(first, other) for other in others) else leaf


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.layout, one.dtype, one.shape) != (other.layout, other.dtype, other.shape):
        return False
    if one.layout is not torch.strided:
        return one is other
    there = other.to(one.device)
    return bool(((one == there) | ((one != one) & (there != there))).all())


def smallest_by_name(variables: Sequence[Variable]) -> Variable:
    """Return the variable next to which non-slot variables live. Spec: EXT-7.

    Raises:
        ValueError: There are none.
    """
    return min(variables, key=lambda variable: variable.name)
