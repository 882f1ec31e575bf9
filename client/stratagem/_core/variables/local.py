"""A plain variable: one tensor on one device of this process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from stratagem._core import device_names
from stratagem._core.enums import VariableAggregation, VariableSynchronization
from stratagem._core.tensors.indexed_slices import IndexedSlices
from stratagem._core.variables.assignable import Write
from stratagem._core.variables.elements import Coordinates
from stratagem._core.variables.initial_values import initial_tensor, operand
from stratagem._core.variables.traits import VariableTraits
from stratagem._core.variables.variable import Variable
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.rows import set_rows

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy


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
        self._traits = VariableTraits.of(name, trainable, synchronization, aggregation)
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
