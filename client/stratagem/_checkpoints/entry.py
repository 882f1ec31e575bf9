"""A tensor that a checkpoint has by a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from stratagem._core.variables.variable import Variable
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError


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
