"""Undoing a step that fails, so that its variables are as they were before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType

import torch

from stratagem_proto.errors import (
    DataLossError,
    InvalidArgumentError,
    ResourceExhaustedError,
    StratagemError,
)
from stratagem_psserver.limits import is_out_of_memory, require_memory

# The most temporary tensors of a parameter's size that an optimizer makes during a step.
_TEMPORARIES = 3
# Smaller steps find memory that was freed before.
LARGE = 1 << 20


class Undo:
    """A context for one step, which undoes the step if it fails and raises a typed error.

    A step that may fail because of its numbers has its variables copied first, by `keep`. Any other
    step can only fail for lack of memory, so `require_memory` looks for memory before it begins.

    Args:
        class_name: The optimizer's class, for messages.

    Attributes:
        begun: Whether the step may have changed variables; the caller sets it.
    """

    __slots__ = ("_class_name", "_kept", "begun")

    def __init__(self, class_name: str) -> None:
        self._class_name = class_name
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] | None = None
        self.begun = False

    def keep(self, written: Iterable[torch.Tensor]) -> None:
        """Copy the tensors that the step writes, to restore them if it fails."""
        self._kept = [(tensor, tensor.clone()) for tensor in written]

    def drop_copies(self) -> None:
        """Drop the copies, because the step now writes tensors that were not copied."""
        self._kept, self.begun = None, True

    @staticmethod
    def require_memory(written: Sequence[torch.Tensor], missing: int = 0) -> None:
        """Check that there is memory for the temporary tensors and the new state of the step.

        Args:
            written: Tensors that the step writes, among them the parameters.
            missing: Bytes of the state that the step makes.
        """
        largest = max((tensor.nbytes for tensor in written), default=0)
        if largest + missing > LARGE:
            require_memory([largest] * _TEMPORARIES + [missing])

    def __enter__(self) -> Undo:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            return
        for tensor, before in self._kept or ():
            tensor.copy_(before)
        if isinstance(error, Exception):
            is_named = isinstance(error, StratagemError)
            # The server's lack of memory is temporary for clients, which would repeat a step that
            # has changed variables.
            if not is_named or (self._is_changed and is_out_of_memory(error)):
                raise self._named(error) from error

    @property
    def _is_changed(self) -> bool:
        return self.begun and self._kept is None

    def _named(self, error: Exception) -> StratagemError:
        name = f"a step of {self._class_name}"
        if self._is_changed:
            return DataLossError(
                f"{name} failed half-way ({_line(error)}): its variables may be "
                "changed in part; restore the last checkpoint"
            )
        if is_out_of_memory(error):
            return ResourceExhaustedError(
                f"the machine of the server has no memory for {name}, which changed "
                "nothing; use more servers, or smaller variables"
            )
        return InvalidArgumentError(
            f"torch.optim.{self._class_name} cannot take this step, which changed "
            f"nothing: {_line(error)}; see its hyperparameters and its state"
        )


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
