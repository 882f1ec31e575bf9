"""A request's description of the tensors that come with it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.protocol import MAX_TENSORS
from stratagem_proto.v1.parameter_server_pb2 import TensorSplit
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.wire.placed import SegmentLayout, kinds_described, layout_of
from stratagem_proto.wire.segment import Kind, Segment
from stratagem_proto.wire.tensors import total_nbytes


class Manifest:
    """Descriptions of tensors, which are checked on first use.

    Args:
        specs: The tensors that are sent.
        derived: The tensors that are decoded from them.
        borrows: Whether the tensors are used only until the request is answered, so that they can
            stay in memory that the client shares.
        splits: Which of the tensors that are sent are several ones.

    Attributes:
        specs: The tensors that are sent.
        borrows: As the argument.
        is_final: Whether no tensors are decoded from them.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        derived: Sequence[TensorSpec] = (),
        borrows: bool = False,
        splits: Sequence[TensorSplit] = (),
    ) -> None:
        self.specs, self._derived, self.borrows = specs, derived, borrows
        self._splits = splits
        self.is_final = not derived

    @cached_property
    def nbytes(self) -> int:
        """Size of the tensors that are sent.

        Raises:
            InvalidArgumentError: There are too many, or a description is invalid.
        """
        if len(self.specs) > MAX_TENSORS:
            raise InvalidArgumentError(
                f"the request has {len(self.specs)} tensors; at most {MAX_TENSORS} are allowed"
            )
        self._check_splits()
        return total_nbytes(self.specs)

    def _check_splits(self) -> None:
        before = -1
        for split in self._splits:
            shape = self.specs[split.tensor].shape if split.tensor < len(self.specs) else ()
            if split.tensor <= before or not shape or sum(split.sizes) != shape[0]:
                raise InvalidArgumentError(
                    f"tensor {split.tensor} of the request, of shape {list(shape)}, cannot be "
                    f"split into {list(split.sizes)[:8]}; sizes are those of its first dimension, "
                    "and tensors are split in ascending order"
                )
            before = split.tensor
        if (pieces := sum(len(split.sizes) for split in self._splits)) > MAX_TENSORS:
            raise InvalidArgumentError(
                f"the tensors of the request are split into {pieces} pieces; at most {MAX_TENSORS} "
                "are allowed"
            )

    def pieces(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors that are sent with the pieces of those that are several ones."""
        if not self._splits:
            return tensors
        sizes = {split.tensor: list(split.sizes) for split in self._splits}
        return [
            piece
            for place, tensor in enumerate(tensors)
            for piece in (tensor.split(sizes[place]) if place in sizes else (tensor,))
        ]

    @property
    def staged_nbytes(self) -> int:
        """Size of the tensors that are sent and of those that are decoded from them."""
        derived = 0 if self.is_final else total_nbytes(self._derived)
        return self.nbytes + derived

    @cached_property
    def layout(self) -> SegmentLayout:
        """Where the tensors are in shared memory; use it after `nbytes`, which checks them."""
        return layout_of(kinds_described(self.specs))

    @cached_property
    def _flat_kinds(self) -> tuple[Kind, ...]:
        dtypes = {dtype for dtype, _ in self.layout.kinds}
        return tuple((dtype, torch.Size([self.layout.room // dtype.itemsize])) for dtype in dtypes)

    def flat(self, segment: Segment) -> torch.Tensor | None:
        """Return a vector of the segment that contains all tensors and the gaps between them.

        Returns:
            The vector; None if the tensors have several dtypes or it would exceed the segment.
        """
        kinds = self._flat_kinds
        if len(kinds) != 1 or segment.nbytes < self.layout.room:
            return None
        return segment.tensors(kinds)[0]
