"""The public `Variable`, and `LocalVariable`: one tensor on one device of this process."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from stratagem._core import device_names
from stratagem._core.assignment import Assignable, Coordinates, ElementAccess, Write
from stratagem._core.options import VariableAggregation, VariableSynchronization
from stratagem._core.tensors import IndexedSlices, Operators, as_array, is_in_place, row_numbers
from stratagem._core.variable_creation import VariableTraits, create, initial_tensor, operand
from stratagem_proto.errors import InvalidArgumentError, UnimplementedError
from stratagem_proto.rows import set_rows

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy


def of_graphs(member: str, remedy: str) -> Callable[..., NoReturn]:
    """Return a method that refuses what only variables of graphs can do."""

    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise graph_refusal(member, remedy)

    return refuse


def graph_refusal(member: str, remedy: str) -> UnimplementedError:
    """Return the error of a member that belongs to graphs."""
    return UnimplementedError(
        f"Variable.{member} belongs to graphs and their sessions, which there are none of here; "
        f"use {remedy}"
    )


class GraphMembers:
    """The members of a variable that belong to graphs. Spec: VAR-25."""

    initializer: None = None
    eval = of_graphs("eval", "read_value() or numpy()")
    initialized_value = of_graphs("initialized_value", "read_value()")
    count_up_to = of_graphs("count_up_to", "a dataset of numbers, or assign_add(1)")
    to_proto = of_graphs("to_proto", "strategy.save()")
    from_proto = of_graphs("from_proto", "strategy.restore()")
    initial_value = property(of_graphs("initial_value", "read_value()"))


class VariableReference:
    """Stands for a variable where it is to be compared as a whole, as `variable.ref()`.

    Attributes:
        _variable: The variable, which it keeps.
    """

    __slots__ = ("_variable",)

    def __init__(self, variable: Variable) -> None:
        self._variable = variable

    def deref(self) -> Variable:
        """Return the variable."""
        return self._variable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VariableReference) and other._variable is self._variable

    def __hash__(self) -> int:
        return id(self._variable)

    def __repr__(self) -> str:
        return f"<Reference wrapping {self._variable!r}>"


class VariableType(type):
    """Sends the call `Variable(...)` through the creators of the thread."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Create a variable: `Variable` itself as the current strategy wants it."""
        if cls is not Variable:
            return super().__call__(*args, **kwargs)
        given = _SIGNATURE.bind(*args, **kwargs).arguments
        return create(_make, **given)


class Variable(Assignable, ElementAccess, GraphMembers, Operators, metaclass=VariableType):
    """A tensor that keeps its identity while its value changes.

    In a strategy's scope the strategy decides where the variable lives and how many copies there
    are. It is usable wherever torch takes a tensor.

    Args:
        initial_value: Tensor, array, number or nested list; or a function without arguments that
            returns one.
        trainable: Whether gradients are wanted; by default yes, except for
            `synchronization=ON_READ`.
        name: Name; by default "Variable". Within a strategy it is made unique by a suffix `_1`,
            `_2`, ...
        dtype: Element type; by default that of the initial value.
        shape: Shape that the initial value must have.
        synchronization: When copies are brought together.
        aggregation: How assignments of several replicas are combined.
        per_worker_variable: Whether each worker of a `ClusterCoordinator` is to have one of its
            own, in its memory. Without workers it makes no difference.

    Raises:
        InvalidArgumentError: A mode is not a member of its enumeration, or the initial value has
            another shape than `shape`.

    Spec: VAR-1, VAR-15 to VAR-22, VRD-7 to VRD-12.
    """

    _traits: VariableTraits
    _strategy: AnyStrategy | None = None
    _container_ref: weakref.ref[Variable] | None = None
    # Name of the variable that a strategy divided into this one and others.
    _shard_of: str | None = None

    def __init__(  # noqa: PLR0913 - the signature of tf.Variable
        self,
        initial_value: Any,
        trainable: bool | None = None,
        name: str | None = None,
        dtype: torch.dtype | None = None,
        shape: Sequence[int] | None = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
        per_worker_variable: bool = False,
    ) -> None:
        raise self._missing("__init__")

    # What a kind of variable has to provide. Not marked as abstract: for a type checker, too, the
    # call `Variable(...)` has to make one.

    @property
    def dtype(self) -> torch.dtype:
        """The type of the elements."""
        raise self._missing("dtype")

    @property
    def shape(self) -> torch.Size:
        """The shape."""
        raise self._missing("shape")

    @property
    def device_name(self) -> str:
        """Full name of the device, maybe a remote one, on which it lives."""
        raise self._missing("device_name")

    def value(self) -> torch.Tensor:
        """Return the tensor through which this thread sees the variable.

        It is a leaf of autograd that requires gradients if the variable is trainable, and is not a
        copy: treat it as read-only.
        """
        raise self._missing("value")

    def _write(self, write: Write, value: Any) -> None:
        """Carry out `write`.

        Called by `assign*` with whatever the user passed, and by `scatter_*` with `IndexedSlices`;
        once this returns, reads in the same thread see the new value.
        """
        raise self._missing("_write")

    def _is_seen_as(self, tensor: torch.Tensor) -> bool:
        """Return whether `value` returns exactly this tensor, in any replica."""
        return self.value() is tensor

    def _saved_value(self) -> torch.Tensor:
        """Return a snapshot of what is saved of it. Spec: VCK-1 to VCK-6."""
        return self.value().detach().clone()

    def _result(self) -> Any:
        """Return what a write returns. Spec: VWR-20, VWR-21."""
        return self

    def _copied(
        self, strategy: AnyStrategy | None, traits: VariableTraits, memo: dict[int, Any]
    ) -> Variable:
        """Return an independent variable of `strategy` with an equal value."""
        raise UnimplementedError(
            f"Variable {self.name!r} cannot be deep-copied where it lives, on "
            f"{self.device_name}; make another Variable of its read_value()"
        )

    def _unite_copies(self) -> bool:
        """Give all copies what the first one has; return whether that changed next to nothing."""
        return True

    def _note_write(self) -> None:
        """Take note that it was written, as it is, by one process of those that have copies."""

    def _before_write_of_copy(self, copy: Variable, function: str) -> None:
        """Check that one of its copies may be written by itself."""

    def _missing(self, member: str) -> UnimplementedError:
        return UnimplementedError(
            f"{type(self).__name__}.{member} must be implemented in descendants"
        )

    # What follows from it.

    def _join(self, strategy: AnyStrategy, container: Variable | None = None) -> None:
        """Note which strategy it belongs to, and what it is a component of."""
        self._strategy = strategy
        if container is not None:
            self._container_ref = weakref.ref(container)

    def __deepcopy__(self, memo: dict[int, Any]) -> Variable:
        """Return an independent variable of the same strategy, with an equal value.

        Its name is made unique by a suffix.
        """
        if self._strategy is None or id(self._strategy) in memo:
            # All of the strategy is being copied, its names too.
            return self._copied(memo.get(id(self._strategy)), self._traits, memo)
        names = self._strategy.extended._names
        traits = replace(self._traits, name=names.choose(self.name))
        copied = self._copied(self._strategy, traits, memo)
        names.record(traits.name, copied)
        return copied

    @property
    def name(self) -> str:
        """The name, unique within the strategy."""
        return self._traits.name

    @property
    def trainable(self) -> bool:
        """Whether gradients with respect to it are wanted."""
        return self._traits.trainable

    @property
    def synchronization(self) -> VariableSynchronization:
        """When copies are brought together."""
        return self._traits.synchronization

    @property
    def aggregation(self) -> VariableAggregation:
        """How assignments of several replicas are combined."""
        return self._traits.aggregation

    @property
    def device(self) -> torch.device:
        """The device of the tensor that `value` returns."""
        return self.value().device

    @property
    def distribute_strategy(self) -> AnyStrategy | None:
        """The strategy that it belongs to. Spec: VAR-18."""
        return self._strategy

    @property
    def container(self) -> Variable | None:
        """The distributed variable that this one is a component of.

        None if there is none, or if it has been collected. Spec: EXT-8.
        """
        return None if self._container_ref is None else self._container_ref()

    @property
    def values(self) -> tuple[Variable, ...]:
        """The copies, in replica order; the variable itself where it is the only one.

        Spec: VRD-9, VRD-10.
        """
        return (self,)

    @property
    def grad(self) -> torch.Tensor | None:
        """The gradient that `backward` accumulated for this replica."""
        return self.value().grad

    @grad.setter
    def grad(self, gradient: torch.Tensor | None) -> None:
        self.value().grad = gradient

    @property
    def data(self) -> torch.Tensor:
        """The value without gradients, to be written by torch: of a variable with one copy here.

        Raises:
            InvalidArgumentError: It has several copies, which would part, or is on a server.
        """
        tensor: torch.Tensor = self._target("data")
        return tensor.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        raise InvalidArgumentError(
            f"Variable {self.name!r} does not become another tensor by `variable.data = value`; "
            "write it by `variable.assign(value)`"
        )

    def read_value(self) -> torch.Tensor:
        """Return a snapshot of the value, differentiable with respect to it."""
        return self._operand().clone()

    def numpy(self) -> npt.NDArray[Any]:
        """Return a copy of the value as an array; bfloat16 becomes float32."""
        return np.array(as_array(self.value()))

    def sparse_read(self, indices: Any) -> torch.Tensor:
        """Return rows, in the order in which they are asked for, as shards do.

        Args:
            indices: Integers, of any shape.

        Returns:
            A tensor of that shape and of the shape of a row, differentiable with respect to the
            value.

        Raises:
            InvalidTypeError: They are no integers.
            InvalidArgumentError: There is no such row.
        """
        if not self.shape:
            raise InvalidArgumentError(
                f"Variable {self.name!r} is a scalar and has no rows; use read_value()"
            )
        return self._operand()[row_numbers(indices, self.name, self.shape[0])]

    def is_initialized(self, name: str | None = None) -> torch.Tensor:
        """Return a true scalar: a variable has a value from its beginning. Spec: VRD-14."""
        return torch.tensor(True)

    def get_shape(self) -> torch.Size:
        """Return `shape`. Spec: VRD-14."""
        return self.shape

    def set_shape(self, shape: Sequence[int | None]) -> None:
        """Check that the variable has a shape; None is any size.

        Raises:
            InvalidArgumentError: It has another one.
            UnimplementedError: There are copies. Spec: VAR-25.
        """
        self._require_one_copy("set_shape")
        pairs = zip(shape, self.shape, strict=False)
        if len(shape) != len(self.shape) or any(size not in (None, own) for size, own in pairs):
            raise InvalidArgumentError(
                f"Variable {self.name!r} has shape {tuple(self.shape)}, which is not compatible "
                f"with {tuple(shape)}; make another variable of that shape"
            )

    @property
    def constraint(self) -> None:
        """None: optimizers have no function to call on their results. Spec: VRD-14."""
        return None

    def ref(self) -> VariableReference:
        """Return what stands for the variable in sets, and compares as a whole. Spec: VRD-14."""
        return VariableReference(self)

    def experimental_ref(self) -> VariableReference:
        """Return `ref()`."""
        return self.ref()

    def load(self, value: Any, session: object = None) -> None:
        """Assign. Spec: VAR-25."""
        self.assign(value, read_value=False)

    def _written(self, write: Write, value: Any, read_value: bool) -> Any:
        self._write(write, value)
        return self._result() if read_value else None

    def _scattered(self, write: Write, delta: IndexedSlices) -> Any:
        self._write(write, delta)
        return self._result()

    def _operand(self) -> torch.Tensor:
        return self.value()

    def _target(self, function: str) -> Any:
        raise InvalidArgumentError(
            f"Variable {self.name!r} cannot be written by torch's {function}; use "
            "assign, assign_add, assign_sub or scatter_*, and read_value() to read it"
        )

    def __getattr__(self, name: str) -> Any:
        # Copying and pickling probe for dunders before there is a value.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        tensor = self._target(name) if is_in_place(name) else self._operand()
        return getattr(tensor, name)

    def __repr__(self) -> str:
        return (
            f"<Variable {self.name!r} shape={tuple(self.shape)} dtype={self.dtype}, "
            f"value={self.value().detach()!r}>"
        )


def _make(**kwargs: Any) -> Any:
    """The last creator: makes a plain variable, or calls a strategy's `make`."""
    kwargs.pop("per_worker_variable", None)
    return kwargs.pop("make", LocalVariable)(**kwargs)


_INIT = signature(Variable.__init__)
_SIGNATURE = _INIT.replace(parameters=list(_INIT.parameters.values())[1:])


class LocalVariable(Variable):
    """A variable whose tensor lives in this process.

    It takes the arguments of `Variable`, and two of its own.

    Args:
        device: Where to put it; by default the current device, else that of the initial value.
        colocate_with: Variable on whose device to put it instead.
    """

    def __init__(  # noqa: PLR0913 - the signature of tf.Variable
        self,
        initial_value: Any,
        trainable: bool | None = None,
        name: str | None = None,
        dtype: torch.dtype | None = None,
        shape: Sequence[int] | None = None,
        synchronization: VariableSynchronization | None = None,
        aggregation: VariableAggregation | None = None,
        device: str | torch.device | None = None,
        colocate_with: Variable | None = None,
    ) -> None:
        self._traits = VariableTraits.with_defaults(name, trainable, synchronization, aggregation)
        initial = initial_tensor(initial_value, dtype, shape)
        if colocate_with is not None:
            device = colocate_with.device_name
        device = device or device_names.current() or initial.device
        self._device_name = device_names.resolve(device)
        target = device_names.torch_device(self._device_name)
        leaf = initial.detach().to(target, copy=True)
        differentiable = leaf.is_floating_point() or leaf.is_complex()
        self._leaf = leaf.requires_grad_(self.trainable and differentiable)

    @classmethod
    def over(cls, leaf: torch.Tensor, traits: VariableTraits, device_name: str) -> LocalVariable:
        """Return a variable whose tensor is `leaf` itself, not a copy.

        Args:
            leaf: A leaf of autograd.
            traits: What the variable is called and used for.
            device_name: Full name of the device of `leaf`.
        """
        variable = cls.__new__(cls)
        variable._traits = traits
        variable._device_name = device_name
        variable._leaf = leaf
        return variable

    def _copied(
        self, strategy: AnyStrategy | None, traits: VariableTraits, memo: dict[int, Any]
    ) -> LocalVariable:
        leaf = copy.deepcopy(self._leaf, memo)
        copied = LocalVariable.over(leaf, traits, self._device_name)
        copied._strategy = strategy
        return copied

    def follow(self, leaf: torch.Tensor) -> None:
        """Have `leaf` itself as the variable's tensor from now on."""
        self._leaf = leaf

    @property
    def dtype(self) -> torch.dtype:
        return self._leaf.dtype

    @property
    def shape(self) -> torch.Size:
        return self._leaf.shape

    @property
    def device_name(self) -> str:
        return self._device_name

    def value(self) -> torch.Tensor:
        return self._leaf

    def _result(self) -> Any:
        # What several copies return becomes mirrored, and no variable.
        container = self.container
        is_copy = container is not None and len(container.values) > 1
        return self._saved_value() if is_copy else self

    def _target(self, function: str) -> torch.Tensor:
        if self._container_ref is not None:
            self._before_write(function)
        return self._leaf

    def _before_write(self, function: str) -> None:
        container = self.container
        if container is not None:
            container._before_write_of_copy(self, function)

    def _replace_elements(self, places: Coordinates, values: torch.Tensor) -> None:
        self._write(Write.ASSIGN, self._leaf.detach().index_put(places.coordinates, values))

    @torch.no_grad()
    def _write(self, write: Write, value: Any) -> None:
        if self._container_ref is not None:
            self._before_write(write.value)
        if isinstance(value, IndexedSlices):
            _SCATTERS[write](self._leaf, *self._rows(value))
        else:
            _WRITES[write](self._leaf, operand(self, value).to(self.device))

    def _rows(self, slices: IndexedSlices) -> tuple[torch.Tensor, torch.Tensor]:
        slices = slices.to(self.device)
        fits = slices.values.shape[1:] == self.shape[1:]
        if self.shape == () or not fits or slices.dtype != self.dtype:
            raise InvalidArgumentError(
                f"Variable {self.name!r} of shape {tuple(self.shape)} and dtype "
                f"{self.dtype} cannot take rows of shape "
                f"{tuple(slices.values.shape[1:])} and dtype {slices.dtype}"
            )
        return self._checked_indices(slices.indices), slices.values

    def _checked_indices(self, indices: torch.Tensor) -> torch.Tensor:
        rows = self.shape[0]
        if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < rows:
            raise InvalidArgumentError(
                f"Variable {self.name!r} has rows 0 to {rows - 1}, but the indices "
                f"reach from {int(indices.min())} to {int(indices.max())}"
            )
        return indices


_WRITES: dict[Write, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    Write.ASSIGN: torch.Tensor.copy_,
    Write.ASSIGN_ADD: torch.Tensor.add_,
    Write.ASSIGN_SUB: torch.Tensor.sub_,
}


def _reduced(reduction: str) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    def scatter(target: torch.Tensor, indices: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        shape = (-1,) + (1,) * (values.dim() - 1)
        index = indices.view(shape).expand_as(values)
        return target.scatter_reduce_(0, index, values, reduction)

    return scatter


def _divided(target: torch.Tensor, indices: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    divisors = _reduced("prod")(torch.ones_like(target), indices, values)
    rows = torch.unique(indices)
    return set_rows(target, rows, (target[rows] / divisors[rows]).to(target.dtype))


_SCATTERS: dict[Write, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    Write.SCATTER_ADD: lambda t, i, v: t.index_add_(0, i, v),
    Write.SCATTER_SUB: lambda t, i, v: t.index_add_(0, i, v, alpha=-1),
    Write.SCATTER_MUL: _reduced("prod"),
    Write.SCATTER_DIV: _divided,
    Write.SCATTER_MIN: _reduced("amin"),
    Write.SCATTER_MAX: _reduced("amax"),
    Write.SCATTER_UPDATE: set_rows,
}
