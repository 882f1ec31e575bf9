"""The memory of large uploads, kept for those that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.wire.tensors import allocate
from stratagem_psserver.limits.budget import Reservation

# What is smaller the allocator keeps itself. Larger buffers go back to the system, and
# to have 100 MB from it takes 37 ms, for which they can be copied seven times.
_LEAST_BYTES = 32 << 20


@dataclass(eq=False)
class Upload:
    """Where the tensors of one request arrive.

    Attributes:
        specs: Their descriptions.
        nbytes: Their size.
        memory: Once they have some of their own; None before.
    """

    specs: Sequence[TensorSpec]
    nbytes: int
    memory: list[torch.Tensor] | None = None

    def tensors(self) -> list[torch.Tensor]:
        """Memory for them, made if there was none to be had."""
        if self.memory is None:
            self.memory = list(map(allocate, self.specs))
        return self.memory


@dataclass(eq=False)
class _Kept:
    upload: Upload
    reservation: Reservation
    is_idle: bool = False


class UploadMemory:
    """Keeps memory of uploads, for as long as its bytes of the budget are free."""

    def __init__(self) -> None:
        self._all: list[_Kept] = []

    def take(self, specs: Sequence[TensorSpec], nbytes: int) -> Upload:
        """Where to put tensors: memory of some like them, if there is any.

        Its bytes are those of the caller then, who has not reserved them yet.
        """
        # The one that was used last, so that others get idle.
        for kept in reversed(self._all) if nbytes >= _LEAST_BYTES else ():
            if kept.upload.specs == specs:
                self._all.remove(kept)
                kept.reservation.release()
                return kept.upload
        return Upload(specs, nbytes)

    def keep(self, upload: Upload, reservation: Reservation) -> None:
        """Keeps the memory of an upload of which nothing is needed any more.

        Args:
            upload: It.
            reservation: Its bytes, which are taken over if they are kept.
        """
        if upload.nbytes >= _LEAST_BYTES and upload.memory is not None:
            self._all.append(_Kept(upload, reservation.hand_over()))

    def trim(self) -> None:
        """Gives back what was not used since it was trimmed last."""
        for kept in list(self._all):
            if kept.is_idle:
                self._drop(kept)
            kept.is_idle = True

    def clear(self) -> None:
        """Gives all of it back."""
        for kept in list(self._all):
            self._drop(kept)

    def _drop(self, kept: _Kept) -> None:
        self._all.remove(kept)
        kept.reservation.release()
