"""Memory that a simulated client shares with a server."""

from __future__ import annotations

import torch

from stratagem_proto.wire.segment import Kind, Segment


class SharedSegment(Segment):
    """A segment that knows whether a server has read it."""

    _uses = 0

    @property
    def is_read(self) -> bool:
        """Whether somebody has taken its tensors besides the client, which has written them."""
        return self._uses > 1

    def tensors(self, kinds: tuple[Kind, ...]) -> list[torch.Tensor]:
        self._uses += 1
        return super().tensors(kinds)
