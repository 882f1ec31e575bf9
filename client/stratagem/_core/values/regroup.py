"""From one value per replica to one nest of distributed values, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stratagem._core.contexts.context import get_strategy
from stratagem._core.options import ValueContext
from stratagem._core.tensors.indexed_slices import IndexedSlices
from stratagem._core.tensors.nests import LEAF_TYPES, map_leaves
from stratagem._core.tensors.operators import TensorStandIn
from stratagem._core.values.distributed_values import DistributedValues, Mirrored, PerReplica
from stratagem._core.variables.variable import Variable
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError


def regroup(
    values: Sequence[Any],
    wrap: Callable[[Sequence[Any]], Any] = PerReplica,
    always_wrap: bool = False,
) -> Any:
    """Merge the nests of all replicas into one.

    A leaf that is the same object on all replicas stays that object, the components of one variable
    become the variable, and other leaves are wrapped.

    Args:
        values: One nest per replica, in replica order.
        wrap: Makes one leaf of leaves that differ; usually a container.
        always_wrap: Wrap every leaf.

    Raises:
        InvalidArgumentError: The nests differ in structure. Spec: REG-1 to REG-9.
    """

    def merged(*leaves: Any) -> Any:
        return wrap(leaves) if always_wrap else _merged(leaves, wrap)

    return map_leaves(merged, *values)


def _merged(leaves: tuple[Any, ...], wrap: Callable[[Sequence[Any]], Any]) -> Any:
    first = leaves[0]
    if all(leaf is first for leaf in leaves):
        return first
    containers = [_container(leaf) for leaf in leaves]
    if all(container is None for container in containers):
        return wrap(leaves)
    container = containers[0]
    if container is None or any(c is not container for c in containers):
        raise InvalidArgumentError(
            f"Cannot merge {leaves!r}: some, not all, are components of one "
            "distributed variable; return the variable itself from every replica"
        )
    return container


def _container(leaf: Any) -> Variable | None:
    return leaf.container if isinstance(leaf, Variable) else None


def select_replica(index: int, nest: Any, count: int | None = None) -> Any:
    """Return `nest` with distributed values replaced by one component.

    Variables stay themselves. Spec: REG-10.

    Args:
        index: Which component.
        nest: The nest.
        count: How many components a `PerReplica` is to have.

    Raises:
        InvalidArgumentError: A distributed value has fewer components, or another number of them.
    """
    if type(nest) in LEAF_TYPES:
        return nest

    def component(leaf: Any) -> Any:
        if not isinstance(leaf, DistributedValues):
            return leaf
        found = len(leaf.values)
        if index >= found or (count not in (None, found) and isinstance(leaf, PerReplica)):
            raise InvalidArgumentError(
                f"{leaf!r} has {found} components, one for each replica of the strategy that made "
                "it, and this strategy has another number of replicas; take values of this one"
            )
        return leaf.values[index]

    return map_leaves(component, nest)


def select_component(index: int, leaf: Any) -> Any:
    """Return one component of a distributed value or of the current strategy's variable.

    Anything else stays itself: the copies of another strategy's variable are of its replicas.
    """
    if isinstance(leaf, Variable):
        own = leaf.distribute_strategy is get_strategy() and len(leaf.values) > 1
        return leaf.values[index] if own else leaf
    return select_replica(index, leaf)


def select_replica_mirrored(index: int, nest: Any) -> Any:
    """Return `nest` with mirrored values replaced by one component.

    Raises:
        InvalidTypeError: A value may differ between replicas. Spec: REG-11.
    """
    map_leaves(_check_mirrored, nest)
    return select_replica(index, nest)


def _check_mirrored(leaf: Any) -> None:
    if isinstance(leaf, DistributedValues) and not isinstance(leaf, Mirrored):
        raise InvalidTypeError(
            f"Expected value to be mirrored across replicas: {leaf!r}; reduce it first"
        )


def regroup_updates(results: Sequence[Any], group: bool) -> Any:
    """Merge what update functions returned, one result per component.

    Args:
        results: One nest per component.
        group: Whether to merge to mirrored values, where leaves that are no tensors and not one
            object are lost; otherwise each leaf becomes the tuple of its components, of length 1 if
            they are one object.

    Spec: REG-12, EXT-4.
    """
    if group:
        return regroup(results, wrap=_mirrored_tensors)
    return map_leaves(_distinct, *results)


def _mirrored_tensors(leaves: Sequence[Any]) -> Mirrored | None:
    kinds = (torch.Tensor, TensorStandIn, IndexedSlices)
    return Mirrored(leaves) if all(isinstance(leaf, kinds) for leaf in leaves) else None


def _distinct(*leaves: Any) -> tuple[Any, ...]:
    same = all(leaf is leaves[0] for leaf in leaves)
    return leaves[:1] if same else leaves


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
