"""Steps that come to nothing, and leave variables as they were."""

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
from stratagem_psserver.limits.allocation import is_out_of_memory, require_memory

# What an optimizer makes on the way, in tensors of a parameter; of SGD less.
_TEMPORARIES = 3
# Of less, memory that was freed is there.
LARGE = 1 << 20


class Undo:
    """One step: a context that turns its failure into an error by name.

    Copies are made where a step may fail for its numbers. Any other can fail for want of memory
    alone, which is looked for before it begins.

    Args:
        class_name: The optimizer, for messages.

    Attributes:
        begun: Whether variables may be changed; the step says so.
    """

    __slots__ = ("_class_name", "_kept", "begun")

    def __init__(self, class_name: str) -> None:
        self._class_name = class_name
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] | None = None
        self.begun = False

    def keep(self, written: Iterable[torch.Tensor]) -> None:
        """Copy what the step writes."""
        self._kept = [(tensor, tensor.clone()) for tensor in written]

    def drop_copies(self) -> None:
        """Note that something is written of which there is no copy."""
        self._kept, self.begun = None, True

    @staticmethod
    def require_memory(written: Sequence[torch.Tensor], missing: int = 0) -> None:
        """Look for the memory that the step takes besides what it writes.

        Args:
            written: The parameters among others.
            missing: Bytes of state that is yet to be made.
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
            # A client would send it again.
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
