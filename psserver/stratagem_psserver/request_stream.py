"""Requests that bring tensors, message by message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Generic

from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.frames import ChunkView, Frame, Header, decode_frame
from stratagem_proto.segment import Segment
from stratagem_proto.serving.border import is_over


class RequestStream(Generic[Header]):
    """Iterates over the chunks of a request, those of one message at a time.

    Args:
        messages: As they arrive.
        header_type: Of the header, which comes with the first one; take that before
            the chunks.
        segment: Memory that the client shares, if it does.
    """

    def __init__(
        self,
        messages: AsyncIterator[bytes],
        header_type: type[Header],
        segment: Segment | None,
    ) -> None:
        self._messages = aiter(messages)
        self._header_type, self._segment = header_type, segment
        self._first: Sequence[ChunkView] | None = None

    async def header(self) -> Header:
        """What is asked.

        Raises:
            MalformedStreamError: The first message has no header.
        """
        async for data in self._messages:
            frame = self._decoded(data)
            if frame.header is None:
                break
            self._first = frame.chunks
            return frame.header
        raise MalformedStreamError(
            f"the stream does not begin with a {self._header_type.__name__}; its first "
            "message must have one"
        )

    @property
    def is_over(self) -> bool:
        """Whether it is known that no more chunks come."""
        return self._first is None and is_over(self._messages)

    def __aiter__(self) -> RequestStream[Header]:
        return self

    async def __anext__(self) -> Sequence[ChunkView]:
        first, self._first = self._first, None
        if first is not None:
            return first
        frame = self._decoded(await anext(self._messages))
        if frame.header is not None:
            raise MalformedStreamError("the stream has a second header")
        return frame.chunks

    def _decoded(self, data: bytes) -> Frame[Header]:
        return decode_frame(data, self._header_type, self._segment)
