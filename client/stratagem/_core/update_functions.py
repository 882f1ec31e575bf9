"""Running update functions on copies of a variable, or on its only one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from stratagem._core import device_names
from stratagem._core.contexts import require_strategy, updating
from stratagem._core.distributed_values import (
    PerReplica,
    regroup_updates,
    select_component,
    select_replica,
)
from stratagem._core.nests import map_leaves
from stratagem._core.options import VariableSynchronization
from stratagem._core.tensors import IndexedSlices
from stratagem._core.variables import Variable
from stratagem_proto.errors import InvalidArgumentError, UpdateFunctionError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy


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
    calls: Sequence[tuple[str, Callable[..., Any]]],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    group: bool,
    variable: Variable | None = None,
) -> Any:
    """Call an update function once per copy, each in the update context of its copy.

    Args:
        strategy: The strategy, current in this thread, in cross-replica context.
        calls: The device of each copy, and the function with the copy already bound to it.
        args: Positional arguments; of distributed values and variables each call gets its
            component.
        kwargs: Keyword arguments, likewise.
        group: Whether to merge the results to mirrored values; otherwise each leaf becomes the
            tuple of what it is for each copy.
        variable: What the function is given to write; None if nothing.

    Raises:
        InvalidArgumentError: Copies of a mirrored variable would part.

    Spec: CTX-4, EXT-4, EXT-6, REG-12.
    """
    results: list[Any] = []
    written: dict[Variable, None] = {}
    before = _versions(variable)
    try:
        for index, (device, call) in enumerate(calls):
            mine = map_leaves(partial(select_component, index), (tuple(args), kwargs))
            with (
                updating(strategy, index) as context,
                device_names.device(device),
                torch.no_grad(),
            ):
                context.written = written
                results.append(call(*mine[0], **mine[1]))
    except BaseException:
        # Some copies are written, and the rest are not.
        _united(_with_changed(written, variable, before))
        raise
    parted = _united(_with_changed(written, variable, before))
    if parted:
        raise InvalidArgumentError(
            f"An update function has written other values into each copy of {', '.join(parted)}: "
            "it was given, or has read, what differs between replicas (a PerReplica, a variable "
            "that is synchronized ON_READ, a random number). Combine it by reduce_to() or "
            "read_value() first. All copies have what the first one has now"
        )
    return regroup_updates(results, group)


def _united(variables: Iterable[Variable]) -> list[str]:
    """Give all copies of variables what the first one has; return the names of those that part."""
    parted = []
    for variable in variables:
        if not variable._unite_copies():
            parted.append(variable.name)
        variable._note_write()
    return parted


def _versions(variable: Variable | None) -> list[int]:
    # Torch counts what is written into a copy by whatever shares its memory.
    values = [] if variable is None else [copy.value() for copy in variable.values]
    return [-1 if value.is_inference() else value._version for value in values]


def _with_changed(
    written: dict[Variable, None], variable: Variable | None, before: list[int]
) -> dict[Variable, None]:
    changed = variable is not None and _versions(variable) != before
    return {**written, variable: None} if changed and variable is not None else written


def require_equal_copies(nest: Any) -> None:
    """Check that copies of variables in the arguments of update functions are equal.

    Raises:
        InvalidArgumentError: A variable is synchronized ON_READ.
        ContextError: One of another strategy is.
    """

    def check(leaf: Any) -> None:
        if has_differing_copies(leaf):
            require_strategy(leaf.distribute_strategy)
            raise InvalidArgumentError(
                f"`update` cannot take variable {leaf.name!r}, which is synchronized ON_READ: its "
                "copies differ between replicas; pass its read_value()"
            )

    map_leaves(check, nest)


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
    return first if all(are_alike(first, other) for other in others) else leaf


def are_alike(one: Any, other: Any) -> bool:
    """Return whether two tensors, or rows, on any devices, have the same values. NaN is NaN."""
    if isinstance(one, IndexedSlices) and isinstance(other, IndexedSlices):
        return are_alike(one.values, other.values) and are_alike(one.indices, other.indices)
    if (one.layout, one.dtype, one.shape) != (other.layout, other.dtype, other.shape):
        return False
    if one is other or one.layout is not torch.strided:
        return one is other
    there = other.to(one.device)
    return torch.equal(one, there) or bool(
        ((one == there) | ((one != one) & (there != there))).all()
    )


def has_differing_copies(value: Any) -> bool:
    """Return whether a value is a variable of which each replica writes its own copy."""
    return (
        isinstance(value, Variable)
        and value.synchronization is VariableSynchronization.ON_READ
        and len(value.values) > 1
    )


def smallest_by_name(variables: Sequence[Variable]) -> Variable:
    """Return the variable next to which non-slot variables live. Spec: EXT-7.

    Raises:
        ValueError: There are none.
    """
    return min(variables, key=lambda variable: variable.name)


def require_own_step(optimizer: Optimizer) -> None:
    """Check that an optimizer steps as its class does, or that only a scheduler looks on.

    Raises:
        UpdateFunctionError: Its step was replaced.
    """
    own = vars(optimizer).get("step")
    if own is not None and not hasattr(own, "_wrapped_by_lr_sched"):
        raise UpdateFunctionError(
            f"the step of this {type(optimizer).__name__} was replaced by another function, which "
            "parameter servers do not see; override step in a subclass instead"
        )
