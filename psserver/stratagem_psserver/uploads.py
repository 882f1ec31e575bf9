"""Requests that carry tensors, and the memory in which these arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Generic

import torch

from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.serving.rpc_boundary import is_over
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.wire.frames import ChunkView, Frame, Header, decode_frame, take_header
from stratagem_proto.wire.placed import SegmentLayout, found
from stratagem_proto.wire.segment import Segment
from stratagem_proto.wire.tensors import allocate
from stratagem_psserver.limits.budget import Reservation


class RequestStream(Generic[Header]):
    """Iterates over the chunks of a request, those of one message at a time.

    Args:
        messages: As they arrive.
        header_type: Of the header, which comes with the first one; take that before the chunks.
        segment: Memory that the client shares, if it does.

    Attributes:
        segment: The same.
        text: The header with its tag and size, as it came; empty before that.
    """

    def __init__(
        self, messages: AsyncIterator[bytes], header_type: type[Header], segment: Segment | None
    ) -> None:
        self._messages = aiter(messages)
        self.segment = segment
        self.text = b""
        self._header_type = header_type
        # What came with the header.
        self._first: memoryview | None = None

    async def header(self) -> Header:
        """Return what is asked.

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
        """Return all tensors, if the first message says that they are in shared memory.

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


# The allocator keeps smaller buffers itself. Larger ones go back to the system, and to get them
# from there again takes several times as long as to copy them.
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
        """Return where to put tensors: memory of some like them, if there is any.

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
        """Keep the memory of an upload of which nothing is needed any more.

        Args:
            upload: It.
            reservation: Its bytes, which are taken over if they are kept.
        """
        if upload.nbytes >= _LEAST_BYTES and upload.memory is not None:
            self._all.append(_Kept(upload, reservation.hand_over()))

    def trim(self) -> None:
        """Give back what was not used since it was trimmed last."""
        for kept in list(self._all):
            if kept.is_idle:
                self._drop(kept)
            kept.is_idle = True

    def clear(self) -> None:
        """Give all of it back."""
        for kept in list(self._all):
            self._drop(kept)

    def _drop(self, kept: _Kept) -> None:
        self._all.remove(kept)
        kept.reservation.release()
