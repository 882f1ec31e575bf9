"""Trees of tuples, lists, mappings and whatever is registered as a pytree."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch.utils import _pytree as pytree

from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

LEAF_TYPES = frozenset((torch.Tensor, int, float, bool, str, bytes, type(None)))
"""Of these, values are always leaves."""


class Node(NamedTuple):
    """An inner node of a nest.

    Attributes:
        shape: What has to agree between nests that are walked together: the form's name with the
            keys or the number of children.
        children: The children, in order.
        rebuild: Makes a node of the same type from new children.
    """

    shape: tuple[str, Any]
    children: Iterable[Any]
    rebuild: Callable[[list[Any]], Any]


def opened(value: Any) -> Node | None:
    """Return the node that `value` is, None if it is a leaf."""
    kind = type(value)
    if kind in LEAF_TYPES:
        return None
    if isinstance(value, list):
        return Node(("list of length", len(value)), value, list)
    if isinstance(value, tuple):
        return Node(("tuple of length", len(value)), value, _tuple_maker(value))
    if isinstance(value, Mapping):
        return _opened_mapping(value)
    return _opened_registered(value) if kind in pytree.SUPPORTED_NODES else None


def _tuple_maker(value: tuple[Any, ...]) -> Callable[[list[Any]], Any]:
    kind = type(value)
    if hasattr(kind, "_make"):
        named: Callable[[list[Any]], Any] = kind._make
        return named
    # torch.Size holds nothing but ints, so its merged form is a plain tuple.
    if kind in (tuple, torch.Size) or kind not in pytree.SUPPORTED_NODES:
        return tuple
    return kind


def _opened_mapping(value: Mapping[Any, Any]) -> Node:
    keys = list(value)

    def rebuild(children: list[Any]) -> Any:
        items = dict(zip(keys, children, strict=True))
        if isinstance(value, defaultdict):
            return defaultdict(value.default_factory, items)
        kind: Callable[[dict[Any, Any]], Any] = type(value)
        try:
            return kind(items)
        except TypeError as error:
            # Its constructor takes something else.
            if not isinstance(value, MutableMapping):
                raise InvalidTypeError(
                    f"a {type(value).__name__} cannot be made of other values ({error}); use a dict"
                ) from error
            made = copy.copy(value)
            made.update(items)
            return made

    return Node(("mapping with keys", frozenset(keys)), value.values(), rebuild)


def _opened_registered(value: Any) -> Node:
    definition = pytree.SUPPORTED_NODES[type(value)]
    children, context = definition.flatten_fn(value)
    return Node(
        (type(value).__name__, str(context)),
        children,
        lambda new: definition.unflatten_fn(new, context),
    )


def map_leaves(fn: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Return a nest like `first` with `fn(leaf, *leaves of others)` as leaves.

    Raises:
        InvalidArgumentError: The nests differ in structure. Spec: REG-1 to REG-3.
    """
    node = opened(first)
    if node is None:
        return fn(first, *others)
    columns = [node.children, *(_matched(node, first, other) for other in others)]
    groups = zip(*columns, strict=True)
    return node.rebuild([map_leaves(fn, *group) for group in groups])


def _matched(node: Node, first: Any, other: Any) -> Iterable[Any]:
    match = opened(other)
    if match is None or match.shape != node.shape:
        raise InvalidArgumentError(
            f"Cannot merge a {_described(node, first)} with a "
            f"{_described(match, other)}; make every replica return, or pass on, "
            "values of the same structure"
        )
    if isinstance(first, Mapping):
        return [other[key] for key in first]
    return match.children


def _described(node: Node | None, value: Any) -> str:
    if node is None:
        return type(value).__name__
    form, detail = node.shape
    return f"{form} {sorted(detail) if isinstance(detail, frozenset) else detail}"


def leaves(nest: Any) -> list[Any]:
    """Return the leaves of `nest`, in order."""
    found: list[Any] = []
    _collect(nest, found)
    return found


def _collect(nest: Any, found: list[Any]) -> None:
    children = _children(nest)
    if children is None:
        found.append(nest)
        return
    for child in children:
        if type(child) in LEAF_TYPES:
            found.append(child)
        else:
            _collect(child, found)


def _children(nest: Any) -> Iterable[Any] | None:
    """As of `opened`; the arguments of a step are looked at in 2.2 us, not 3.2, so."""
    kind = type(nest)
    if kind is tuple or kind is list:
        return cast("Sequence[Any]", nest)
    node = opened(nest)
    return None if node is None else node.children
