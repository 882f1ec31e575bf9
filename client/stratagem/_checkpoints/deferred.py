"""Values of a checkpoint that wait for their variables, and how a checkpoint names them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from stratagem._core.variables import Variable
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError
from stratagem_proto.programs.slot_names import SlotName


@dataclass(frozen=True)
class CheckpointEntry:
    """Something with a value to be saved and restored.

    Attributes:
        name: Its name in checkpoints.
        shape: Its shape.
        dtype: Its element type.
        read: Returns a snapshot of the value.
        write: Replaces the value by a tensor of this shape and dtype.
    """

    name: str
    shape: torch.Size
    dtype: torch.dtype
    read: Callable[[], torch.Tensor]
    write: Callable[[torch.Tensor], object]

    @classmethod
    def of_variable(cls, variable: Variable) -> CheckpointEntry:
        """Return the entry of a variable; to be used in cross-replica context."""
        return cls(
            variable.name,
            variable.shape,
            variable.dtype,
            variable._saved_value,
            partial(variable.assign, read_value=False),
        )

    @classmethod
    def of_tensor(cls, name: str, tensor: torch.Tensor) -> CheckpointEntry:
        """Return the entry of a tensor that is written in place."""
        return cls(
            name,
            tensor.shape,
            tensor.dtype,
            lambda: tensor.detach().clone(),
            partial(_copy, tensor),
        )

    def require_fit(self, value: Any) -> None:
        """Check that `value` can be written.

        Raises:
            InvalidTypeError: It is no tensor.
            InvalidArgumentError: It has another shape or dtype.
        """
        if not isinstance(value, torch.Tensor):
            raise InvalidTypeError(
                f"the checkpoint has a {type(value).__name__} for {self.name!r}; its "
                "values are tensors"
            )
        if (value.shape, value.dtype) != (self.shape, self.dtype):
            raise InvalidArgumentError(
                f"the checkpoint has {self.name!r} with shape {tuple(value.shape)} and "
                f"dtype {value.dtype}, but here it has shape {tuple(self.shape)} and "
                f"dtype {self.dtype}; restore into the model that was saved"
            )


@torch.no_grad()
def _copy(tensor: torch.Tensor, value: torch.Tensor) -> None:
    tensor.copy_(value)


Slots = dict[str, dict[str, torch.Tensor]]
"""The state that optimizers have for one variable, by optimizer and torch's key."""


class DeferredState:
    """The values of a checkpoint that nothing has taken yet."""

    def __init__(self) -> None:
        self._values: dict[str, torch.Tensor] = {}
        self._slot_names: defaultdict[str, list[SlotName]] = defaultdict(list)

    def replace(self, values: Mapping[str, torch.Tensor]) -> None:
        """Forget the values there are, and have others from now on."""
        self._values = dict(values)
        self._slot_names.clear()
        for name in values:
            slot = SlotName.parse(name)
            if slot is not None:
                self._slot_names[slot.variable].append(slot)

    def names(self) -> list[str]:
        """Return the names of the values."""
        return sorted(self._values)

    def restore(self, entry: CheckpointEntry) -> None:
        """Write to `entry` its value, if there is one, which is then taken.

        Raises:
            InvalidArgumentError: It does not fit.
        """
        if entry.name in self._values:
            entry.require_fit(self._values[entry.name])
            entry.write(self._values.pop(entry.name))

    def take_slots(self, variable: str) -> Slots:
        """Return the optimizers' state for a variable, and forget it."""
        slots: Slots = defaultdict(dict)
        for slot in self._slot_names.pop(variable, ()):
            # A variable may have been named like this itself.
            if str(slot) in self._values:
                slots[slot.optimizer][slot.key] = self._values.pop(str(slot))
        return slots
