"""What a request says of the tensors that it brings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.protocol import MAX_TENSORS
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.wire.placed import SegmentLayout, kinds_described, layout_of
from stratagem_proto.wire.segment import Kind, Segment
from stratagem_proto.wire.tensors import total_nbytes


class Manifest:
    """Descriptions of tensors, which are checked once they are asked about.

    Args:
        specs: Of the tensors.
        derived: Of what is made of them.

    Attributes:
        specs: Of the tensors.
        is_final: Whether nothing is made of them.
    """

    def __init__(
        self, specs: Sequence[TensorSpec], derived: Sequence[TensorSpec] = ()
    ) -> None:
        self.specs, self._derived = specs, derived
        self.is_final = not derived

    @cached_property
    def nbytes(self) -> int:
        """Size of the tensors.

        Raises:
            InvalidArgumentError: They are too many, or one cannot be as described.
        """
        if len(self.specs) > MAX_TENSORS:
            raise InvalidArgumentError(
                f"the request has {len(self.specs)} tensors; at most {MAX_TENSORS} are "
                "allowed"
            )
        return total_nbytes(self.specs)

    @property
    def staged_nbytes(self) -> int:
        """The same, with what is made of them."""
        derived = 0 if self.is_final else total_nbytes(self._derived)
        return self.nbytes + derived

    @cached_property
    def layout(self) -> SegmentLayout:
        """Where the tensors are in shared memory; ask once `nbytes` is known."""
        return layout_of(kinds_described(self.specs))

    @cached_property
    def _joint_kinds(self) -> tuple[Kind, ...]:
        dtypes = {dtype for dtype, _ in self.layout.kinds}
        return tuple(
            (dtype, torch.Size([self.layout.room // dtype.itemsize]))
            for dtype in dtypes
        )

    def joint(self, segment: Segment) -> torch.Tensor | None:
        """All tensors, and what is between them, as one vector.

        Args:
            segment: Where they are.

        Returns:
            None if they are not of one type, or it would end behind the segment.
        """
        kinds = self._joint_kinds
        if len(kinds) != 1 or segment.nbytes < self.layout.room:
            return None
        return segment.tensors(kinds)[0]
