"""Streams of requests that contain tensors, and the memory into which the tensors are received."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

import torch

from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.wire.frames import (
    ChunkView,
    Frame,
    Header,
    decode_frame,
    encode_header,
    take_header,
)
from stratagem_proto.wire.placed import SegmentLayout, decode_whole, tensors_in_segment
from stratagem_proto.wire.segment import Segment
from stratagem_proto.wire.tensors import allocate, as_bytes, total_nbytes
from stratagem_psserver.limits import Reservation
from stratagem_rpc.server_call import CallMessages


class RequestStream(Generic[Header]):
    """An iterator over the chunks of a request, which yields those of one message at a time.

    Attributes:
        segment: As the argument.
        text: The serialised header with its tag and size; empty until `header` was called.
    """

    def __init__(
        self, messages: CallMessages, header_type: type[Header], segment: Segment | None
    ) -> None:
        self._messages = messages
        self.segment = segment
        self.text = b""
        self._header_type = header_type
        # The rest of the message that contained the header.
        self._first: memoryview | None = None

    async def header(self, check: Callable[[memoryview], None] | None = None) -> Header:
        """Return the header of the request.

        Args:
            check: Called with the encoded header; raises if it is not to be decoded.
        """
        data = await anext(self._messages, b"")
        begun = take_header(data, self._header_type, check)
        if begun is None:
            raise MalformedStreamError(
                f"the stream does not begin with a {self._header_type.__name__}; its first "
                "message must have one"
            )
        header, self._first = begun
        self.text = bytes(data[: len(data) - len(self._first)])
        return header

    def in_segment(self, layout: SegmentLayout) -> list[torch.Tensor] | None:
        """Return all tensors if the first message says that they are in shared memory, else None.

        Args:
            layout: The layout that they must have there; None is returned for any other.
        """
        if self.segment is None or self._first is None:
            return None
        tensors = tensors_in_segment(layout, self._first, self.segment)
        if tensors is not None:
            self._first = None
        return tensors

    @property
    def is_one_message(self) -> bool:
        """Whether the message that contained the header is known to be the only one."""
        return self._first is not None and self._messages.is_over

    def sent_whole(self, layout: SegmentLayout) -> list[torch.Tensor] | None:
        """Return all tensors of the only message if that is small and has each in one chunk.

        Args:
            layout: The layout that says of which kinds they are; None is returned for any other.
        """
        assert self._first is not None, "the header was not read"
        tensors = decode_whole(self._first, layout)
        if tensors is None or len(tensors) != len(layout.kinds):
            return None
        self._first = None
        return tensors

    @property
    def is_over(self) -> bool:
        """Whether the stream is known to have no more chunks."""
        return self._first is None and self._messages.is_over

    def __aiter__(self) -> RequestStream[Header]:
        return self

    async def __anext__(self) -> Sequence[ChunkView]:
        data, self._first = self._first, None
        message = await anext(self._messages) if data is None else data
        frame: Frame[Header] = decode_frame(message, self._header_type, self.segment)
        if frame.header is not None:
            raise MalformedStreamError("the stream has a second header")
        return frame.chunks


class StoredRequest(RequestStream[Header]):
    """A request that was received earlier, with the bytes of all its tensors."""

    def __init__(self, header: Header, tensors: memoryview) -> None:
        super().__init__(_NoMessages(), type(header), None)
        self._tensors = tensors
        self.text = encode_header(header.SerializeToString())

    def tensors(self, specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
        """Return copies of its tensors."""
        if total_nbytes(specs) > len(self._tensors):
            raise MalformedStreamError(
                f"a stored request has {len(self._tensors)} bytes of tensors, which are said to "
                f"have {total_nbytes(specs)}; the file that it is from was altered"
            )
        tensors, rest = list(map(allocate, specs)), self._tensors
        for tensor in tensors:
            as_bytes(tensor)[:] = rest[: tensor.nbytes]
            rest = rest[tensor.nbytes :]
        return tensors


class _NoMessages(CallMessages):
    async def __anext__(self) -> bytes:
        raise StopAsyncIteration


# The allocator keeps smaller buffers. It returns larger ones to the system, and getting those again
# takes several times as long as copying them.
_LEAST_BYTES = 32 << 20


@dataclass(eq=False)
class Upload:
    """The memory into which the tensors of one request are received.

    Attributes:
        specs: The descriptions of the tensors.
        nbytes: Their size.
        memory: The tensors; None until they are allocated.
    """

    specs: Sequence[TensorSpec]
    nbytes: int
    memory: list[torch.Tensor] | None = None

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors, which are allocated on the first call."""
        if self.memory is None:
            self.memory = list(map(allocate, self.specs))
        return self.memory


@dataclass(eq=False)
class _Kept:
    upload: Upload
    reservation: Reservation
    is_idle: bool = False


class UploadMemory:
    """Memory of past uploads, which is kept while nothing else needs its bytes of the budget."""

    def __init__(self) -> None:
        self._all: list[_Kept] = []

    def take(self, specs: Sequence[TensorSpec], nbytes: int) -> Upload:
        """Return memory for tensors, if possible that of an earlier upload with the same specs.

        Its reservation is released; the caller reserves the bytes again.
        """
        # The memory that was used last is taken first, so that the other becomes idle.
        for kept in reversed(self._all) if nbytes >= _LEAST_BYTES else ():
            if kept.upload.specs == specs:
                self._all.remove(kept)
                kept.reservation.release()
                return kept.upload
        return Upload(specs, nbytes)

    def keep(self, upload: Upload, reservation: Reservation) -> None:
        """Keep the memory of an upload whose tensors are no longer needed."""
        if upload.nbytes >= _LEAST_BYTES and upload.memory is not None:
            self._all.append(_Kept(upload, reservation.give_up()))

    def trim(self) -> None:
        """Release the memory that was not used since the last call."""
        idle = [kept for kept in self._all if kept.is_idle]
        self._all = [kept for kept in self._all if not kept.is_idle]
        for kept in idle:
            kept.reservation.release()
        for kept in self._all:
            kept.is_idle = True

    def clear(self) -> None:
        for kept in self._all:
            kept.reservation.release()
        self._all = []
