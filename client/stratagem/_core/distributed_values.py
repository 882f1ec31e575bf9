"""Containers with one value for each replica: made of nests, taken apart, and copied to devices."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch

from stratagem._core import device_names
from stratagem._core.contexts import (
    ContextVarScope,
    current_context,
    current_replica_id,
    get_strategy,
)
from stratagem._core.nests import LEAF_TYPES, leaves, map_leaves, opened
from stratagem._core.options import ValueContext, old_spelling
from stratagem._core.tensors import IndexedSlices, Operators, TensorStandIn, is_in_place
from stratagem._core.variables import Variable
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError


class DeviceAccess(TensorStandIn):
    """Access to components by the device that they are on.

    The devices are those that the values were made with. Where they were made without, they are the
    replicas' devices of the strategy in scope.

    Spec: VAL-2.
    """

    _device_names: tuple[str, ...] | None = None

    @property
    def values(self) -> tuple[Any, ...]:
        raise NotImplementedError

    @property
    @old_spelling("strategy.extended.worker_devices")
    def devices(self) -> tuple[str, ...]:
        """Full names of the components' devices, in replica order."""
        return self._named_devices()

    @old_spelling("strategy.experimental_local_results(value)")
    def get(self, device: str | torch.device | None = None) -> Any:
        """Return the component on a device.

        Args:
            device: The device; by default the component that the context selects.

        Raises:
            InvalidArgumentError: No component is there.
            ContextError: The devices are not known, as no strategy is in scope.
        """
        if device is None:
            return self._component()
        name, known = device_names.canonicalize(device), self._named_devices()
        if name not in known:
            raise InvalidArgumentError(f"Device {name} not found in {list(known)} of {self!r}")
        return self.values[known.index(name)]

    @old_spelling("strategy.extended.worker_devices")
    def on_device(self, device: str | torch.device) -> bool:
        """Return whether a component is on a device."""
        return device_names.canonicalize(device) in self._named_devices()

    @property
    @old_spelling("isinstance() of the components")
    def is_tensor_like(self) -> bool:
        """Whether torch functions take every component as a tensor."""
        kinds = (torch.Tensor, TensorStandIn)
        return all(isinstance(value, kinds) for value in self.values)

    def _component(self) -> Any:
        raise NotImplementedError

    def _named_devices(self) -> tuple[str, ...]:
        if self._device_names is not None:
            return self._device_names
        names = tuple(get_strategy().extended.worker_devices)
        if len(names) != len(self.values):
            raise InvalidArgumentError(
                f"{self!r} has {len(self.values)} components, and the strategy in "
                f"scope {len(names)} devices; enter that of the one that made it"
            )
        return names


class DistributedValues(DeviceAccess):
    """One value per replica, in replica order.

    Args:
        values: The components; or a mapping of devices to them, as up to 1.13.

    Spec: VAL-1.
    """

    def __init__(self, values: Sequence[Any] | Mapping[str | torch.device, Any]) -> None:
        if isinstance(values, Mapping):
            self._device_names = tuple(map(device_names.canonicalize, values))
            values = tuple(values.values())
        self._values = tuple(values)

    @property
    def values(self) -> tuple[Any, ...]:
        """The components, in replica order."""
        return self._values

    def _component(self) -> Any:
        """Return the component that the context of this thread selects.

        Spec: VAL-3.
        """
        index = current_replica_id()
        if index is None:
            return self._primary()
        if index >= len(self._values):
            raise InvalidArgumentError(
                f"{self!r} has {len(self._values)} components, and none for replica {index}; use "
                "values of this strategy, which has more replicas than the one that made them"
            )
        return self._values[index]

    def _primary(self) -> Any:
        here = device_names.current()
        for value in self._values if here else ():
            if _device_name(value) == here:
                return value
        return self._values[0]

    def _operand(self) -> Any:
        return self._component()

    def __repr__(self) -> str:
        lines = [f"  {i}: {value!r}" for i, value in enumerate(self._values)]
        return type(self).__name__ + ":{\n" + ",\n".join(lines) + "\n}"


class PerReplica(DistributedValues):
    """Values that differ between replicas; typically what `run` returns.

    It has no arithmetic: reduce it first, or use it in a replica function.
    Spec: VAL-4.
    """

    without_rows: tuple[int, ...] = ()
    """The replicas that had no data when they returned their component."""

    def _operand(self) -> Any:
        context = current_context()
        # An update of the only copy of a variable is of all replicas.
        in_one = context is not None and (context.replica_context or context.written is not None)
        if not in_one or context is None or context.component is None:
            raise InvalidArgumentError(
                "You are using a PerReplica object while not inside a replica context; "
                "pass it to a function by strategy.run(), or combine its "
                f"{len(self._values)} values by strategy.reduce()"
            )
        return self._component()


class Mirrored(Operators, DistributedValues):
    """Values that are equal on all replicas.

    Operators, attributes and torch functions see the component of the context.
    Spec: VAL-5, VAL-7.
    """

    def __getattr__(self, name: str) -> Any:
        # Copying and pickling probe for dunders before `_values` exists.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        component = self._target(name) if is_in_place(name) else self._component()
        return getattr(component, name)

    def _target(self, function: str) -> Any:
        if current_replica_id() is None and len(self._values) > 1:
            raise InvalidArgumentError(
                f"torch's {function} would write to one of the {len(self._values)} "
                "equal components of a Mirrored, which would part; make new values by "
                "an operator, or write to each of strategy.experimental_local_results()"
            )
        return self._component()


def _device_name(value: Any) -> str | None:
    # A CPU tensor does not know on which of the logical CPUs it lives.
    name = getattr(value, "device_name", None)
    device = getattr(value, "device", None)
    if name is None and device is not None and device.type != "cpu":
        return device_names.canonicalize(device)
    return name if isinstance(name, str) else None


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
    for leaf in leaves(nest):
        if isinstance(leaf, DistributedValues) and not isinstance(leaf, Mirrored):
            raise InvalidTypeError(
                f"Expected value to be mirrored across replicas: {leaf!r}; reduce it first"
            )
    return select_replica(index, nest)


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


def components(leaf: Any) -> tuple[Any, ...] | None:
    """Return what each replica has of `leaf`; None if it is a plain value."""
    if isinstance(leaf, DistributedValues):
        return leaf.values
    copied = isinstance(leaf, Variable) and len(leaf.values) > 1
    return leaf.values if copied else None


def place(nest: Any, destinations: Any) -> Any:
    """Copy reduced values to where `destinations` is.

    Args:
        nest: Tensors, `IndexedSlices`, variables, meaning their values, and plain values, which
            stay as they are.
        destinations: A device; or a tensor, meaning its device; or a variable or distributed
            values, meaning the devices of all components; or the nest that was reduced, meaning for
            each leaf its own.

    Returns:
        The values there; for several components a `Mirrored` of distinct copies.

    Raises:
        InvalidArgumentError: There is something to copy, but no destination.
    """
    return at_destinations(_place_leaf, nest, destinations)


def at_destinations(fn: Callable[[Any, Any], Any], nest: Any, destinations: Any) -> Any:
    """Call `fn` with each leaf and where its result goes; return a nest of results."""
    if opened(destinations) is None:
        return map_leaves(lambda leaf: fn(leaf, destinations), nest)
    return map_leaves(fn, nest, destinations)


def refused_destinations(destinations: Any) -> InvalidArgumentError:
    """Return the error for what is no destination."""
    return InvalidArgumentError(
        "destinations must be one device, variable or value, not "
        f"{destinations!r}; to reduce to several pass a value that lives there"
    )


def _place_leaf(value: Any, destination: Any) -> Any:
    if isinstance(value, Variable):
        value = value.read_value()
    if not isinstance(value, torch.Tensor | IndexedSlices):
        return value
    if destination is None:
        raise refused_destinations(destination)
    places = components(destination)
    if places is not None:
        first, *others = places
        # A replica may write its copy in place, which must not show elsewhere.
        copies = [_copied(_place_leaf(value, other)) for other in others]
        first = _place_leaf(value, first)
        return Mirrored([first, *copies]) if copies else first
    if isinstance(destination, str | torch.device):
        return value.to(device_names.torch_device(destination))
    device = getattr(destination, "device", None)
    return value if device is None else value.to(device)


def _copied(value: torch.Tensor | IndexedSlices) -> torch.Tensor | IndexedSlices:
    if isinstance(value, IndexedSlices):
        return IndexedSlices(value.values.clone(), value.indices.clone(), value.dense_shape)
    return value.clone()


def replicas_without_rows(arguments: Any, wrapped: bool = True) -> tuple[int, ...]:
    """Return the replicas of this process that get nothing but tensors of 0 rows.

    Args:
        arguments: What a replica function is called with.
        wrapped: Whether input is `PerReplica`, so that other leaves do not matter. The only replica
            of a process gets plain tensors.
    """
    found = leaves(arguments)
    parts = [leaf.values for leaf in found if type(leaf) is PerReplica]
    if not wrapped:
        parts = [(leaf,) for leaf in found]
    without = []
    for index, mine in enumerate(zip(*parts, strict=False)):
        tensors = [part for part in mine if isinstance(part, torch.Tensor) and part.dim()]
        if tensors and not any(tensor.shape[0] for tensor in tensors):
            without.append(index)
    return tuple(without)


# Threads of replicas take over the variables of the thread that runs them.
_WITHOUT_ROWS: ContextVar[tuple[int, ...]] = ContextVar("replicas without rows")


_NOTHING: AbstractContextManager[None] = nullcontext()


def running_without_rows(replicas: tuple[int, ...]) -> AbstractContextManager[None]:
    """Scope in which the replicas run, some of them perhaps without data."""
    is_as_before = replicas == _WITHOUT_ROWS.get(())
    return _NOTHING if is_as_before else ContextVarScope(_WITHOUT_ROWS, replicas)


def has_no_rows() -> bool:
    """Return whether the replica that this thread runs got no data."""
    empty = _WITHOUT_ROWS.get(())
    return bool(empty) and current_replica_id() in empty


def marked(results: Any, replicas: tuple[int, ...]) -> Any:
    """Return `results` with the note that these replicas had no data."""

    def noted(leaf: Any) -> Any:
        if type(leaf) is not PerReplica:
            return leaf
        twin = copy.copy(leaf)
        twin.without_rows = replicas
        return twin

    return map_leaves(noted, results)


def warn_of_replicas_without_rows(value: Any) -> None:
    """Warn if `value`, about to be reduced, is partly of replicas without data."""
    noted = [leaf.without_rows for leaf in leaves(value) if type(leaf) is PerReplica]
    for replicas in {replicas for replicas in noted if replicas}:
        warnings.warn(
            f"reduce(axis=None) takes in what replica {' and '.join(map(str, replicas))} returned "
            "without having had any data; let the replica function keep the rows, and "
            "pass axis=0 to weigh replicas by their rows",
            stacklevel=3,
        )
