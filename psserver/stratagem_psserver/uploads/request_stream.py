"""Requests that carry tensors, message by message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Generic

import torch

from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.serving.rpc_boundary import is_over
from stratagem_proto.wire.frames import (
    ChunkView,
    Frame,
    Header,
    decode_frame,
    take_header,
)
from stratagem_proto.wire.placed import SegmentLayout, found
from stratagem_proto.wire.segment import Segment


class RequestStream(Generic[Header]):
    """Iterates over the chunks of a request, those of one message at a time.

    Args:
        messages: As they arrive.
        header_type: Of the header, which comes with the first one; take that before
            the chunks.
        segment: Memory that the client shares, if it does.

    Attributes:
        segment: The same.
        text: The header with its tag and size, as it came; empty before that.
    """

    def __init__(
        self,
        messages: AsyncIterator[bytes],
        header_type: type[Header],
        segment: Segment | None,
    ) -> None:
        self._messages = aiter(messages)
        self.segment = segment
        self.text = b""
        self._header_type = header_type
        # What came with the header.
        self._first: memoryview | None = None

    async def header(self) -> Header:
        """What is asked.

        Raises:
            MalformedStreamError: The first message has no header, or not at first.
        """
        async for data in self._messages:
            begun = take_header(data, self._header_type)
            if begun is None:
                break
            header, self._first = begun
            self.text = bytes(data[: len(data) - len(self._first)])
            return header
        raise MalformedStreamError(
            f"the stream does not begin with a {self._header_type.__name__}; its first "
            "message must have one"
        )

    def found(self, layout: SegmentLayout) -> list[torch.Tensor] | None:
        """All tensors, if the first message says that they are in shared memory.

        Args:
            layout: Where they are then. None is returned if they are anywhere else.
        """
        if self.segment is None or self._first is None:
            return None
        tensors = found(layout, self._first, self.segment)
        if tensors is not None:
            self._first = None
        return tensors

    @property
    def is_over(self) -> bool:
        """Whether it is known that no more chunks come."""
        return self._first is None and is_over(self._messages)

    def __aiter__(self) -> RequestStream[Header]:
        return self

    async def __anext__(self) -> Sequence[ChunkView]:
        data, self._first = self._first, None
        frame = self._decoded(await anext(self._messages) if data is None else data)
        if frame.header is not None:
            raise MalformedStreamError("the stream has a second header")
        return frame.chunks

    def _decoded(self, data: bytes | memoryview) -> Frame[Header]:
        return decode_frame(data, self._header_type, self.segment)
