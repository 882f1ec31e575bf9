"""Encoding and decoding the frames of streams that contain tensors.

Every streamed message of the contract has the layout `header = 1; chunks = 2`. Protobuf would copy
the `bytes` of a chunk twice more than needed, so this module encodes and decodes frames itself. A
test checks that the bytes are those of protobuf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from google.protobuf.message import DecodeError, Message

from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.protocol import CHUNK_BYTES
from stratagem_proto.v1 import tensor_pb2
from stratagem_proto.v1.tensor_pb2 import Place, TensorSpec
from stratagem_proto.wire.fields import FIRST_TAG, bytes_of, fields_of, read_varint, varint
from stratagem_proto.wire.segment import Segment
from stratagem_proto.wire.tensors import allocate, as_bytes, decode_dtype, nbytes_of

Header = TypeVar("Header", bound=Message)

_CHUNKS_TAG = b"\x12"  # field 2, length-delimited
_TENSOR_TAG = b"\x08"  # field 1, varint
_OFFSET_TAG = b"\x10"  # field 2, varint
_DATA_TAG = b"\x1a"  # field 3, length-delimited
_PLACE_TAG = b"\x22"  # field 4, length-delimited

# Protobuf decodes smaller messages faster, in spite of its copies. The limit is higher for messages
# whose tensors are in a segment, since these have many small parts.
_SMALL_BYTES = 4 << 10
_SMALL_PLACED_BYTES = 256 << 10


class ChunkView(NamedTuple):
    """Consecutive bytes of one tensor.

    Attributes:
        tensor: The index of the tensor.
        offset: The position of the first byte within the tensor.
        data: The bytes, which may be a view of other memory.
        start: The position of the first byte within the shared segment that contains the bytes;
            None if they are sent in the message.
    """

    tensor: int
    offset: int
    data: memoryview
    start: int | None = None


@dataclass
class Frame(Generic[Header]):
    """One message of a stream: perhaps a header, and chunks."""

    header: Header | None = None
    chunks: list[ChunkView] = field(default_factory=list)


def encode_frame(frame: Frame[Header]) -> bytes:
    """Return the encoded frame; the chunks' bytes are copied once."""
    parts: list[bytes | memoryview] = []
    if frame.header is not None:
        parts.append(encode_header(frame.header.SerializeToString()))
    for chunk in frame.chunks:
        prefix = _chunk_prefix(chunk)
        data = chunk.data if chunk.start is None else b""
        parts += (_CHUNKS_TAG, varint(len(prefix) + len(data)), prefix, data)
    return b"".join(parts)


def encode_at_once(header: bytes, tensors: Sequence[torch.Tensor]) -> bytes:
    """Return the one frame that carries an encoded header and all of the tensors.

    It is `encode_frame` of the only frame of `split`, for less of a processor's time.
    """
    parts: list[bytes | memoryview] = [FIRST_TAG, varint(len(header)), header]
    for number, tensor in enumerate(tensors):
        data = as_bytes(tensor)
        if data:
            parts += (_whole_prefix(number, len(data)), data)
    return b"".join(parts)


# Each step sends the same tensors.
@lru_cache(maxsize=1024)
def _whole_prefix(tensor: int, nbytes: int) -> bytes:
    """Return what comes before the bytes of a tensor that is one chunk."""
    number = _TENSOR_TAG + varint(tensor) if tensor else b""
    prefix = number + _DATA_TAG + varint(nbytes)
    return _CHUNKS_TAG + varint(len(prefix) + nbytes) + prefix


def encode_header(header: bytes) -> bytes:
    """Return the part of a frame that contains an encoded header."""
    return FIRST_TAG + varint(len(header)) + header


def _chunk_prefix(chunk: ChunkView) -> bytes:
    """Return the message of a chunk without its bytes; proto3 omits zeros."""
    prefix = b""
    if chunk.tensor:
        prefix += _TENSOR_TAG + varint(chunk.tensor)
    if chunk.offset:
        prefix += _OFFSET_TAG + varint(chunk.offset)
    if chunk.start is not None:
        place = Place(start=chunk.start, nbytes=len(chunk.data)).SerializeToString()
        return prefix + _PLACE_TAG + varint(len(place)) + place
    return prefix + _DATA_TAG + varint(len(chunk.data))


def decode_frame(
    data: bytes | memoryview, header_type: type[Header], segment: Segment | None = None
) -> Frame[Header]:
    """Decode a frame; the chunks of a large one are views of `data`, not copies.

    Args:
        data: The encoded frame.
        header_type: The class of the header, if the frame has one.
        segment: The shared memory in which chunks may name places; None if there is none.

    Raises:
        MalformedStreamError: The bytes are not such a message, or a place is not in the segment.
    """
    try:
        if len(data) <= (_SMALL_PLACED_BYTES if segment else _SMALL_BYTES):
            return _decode_small(data, header_type, segment)
        return _decode_large(data, header_type, segment)
    except (DecodeError, IndexError) as error:
        raise _malformed(len(data), header_type, error) from error


def take_header(
    data: bytes | memoryview,
    header_type: type[Header],
    check: Callable[[memoryview], None] | None = None,
) -> tuple[Header, memoryview] | None:
    """Return the header of a frame and the rest, which is a frame of chunks only.

    Args:
        data: The encoded frame.
        header_type: The class of the header.
        check: Called with the encoded header; raises if it is not to be decoded. By default any
            header is.

    Returns:
        None if the frame does not begin with a header.

    Raises:
        MalformedStreamError: The bytes are not such a message.
    """
    view = memoryview(data)
    if view[:1] != FIRST_TAG:
        return None
    try:
        size, begin = read_varint(view, 1)
        end = begin + size
        if end > len(view):
            raise DecodeError("the header is cut short")
        encoded = view[begin:end]
        if check is not None:
            check(encoded)
        return header_type.FromString(bytes(encoded)), view[end:]
    except (DecodeError, IndexError) as error:
        raise _malformed(len(data), header_type, error) from error


def _malformed(nbytes: int, header_type: type[Message], error: Exception) -> MalformedStreamError:
    return MalformedStreamError(
        f"a frame of {nbytes} bytes is not a {header_type.__name__} stream's message: {error}"
    )


def _decode_small(
    data: bytes | memoryview, header_type: type[Header], segment: Segment | None
) -> Frame[Header]:
    message = tensor_pb2.Frame.FromString(bytes(data))
    header = None
    if message.HasField("header"):
        header = header_type.FromString(message.header)
    return Frame(header, [_chunk_of(chunk, segment) for chunk in message.chunks])


def _chunk_of(chunk: tensor_pb2.Chunk, segment: Segment | None) -> ChunkView:
    if chunk.HasField("place"):
        seen, start = _seen(chunk.place, segment), chunk.place.start
        return ChunkView(chunk.tensor, chunk.offset, seen, start)
    return ChunkView(chunk.tensor, chunk.offset, memoryview(chunk.data))


def _decode_large(
    data: bytes | memoryview, header_type: type[Header], segment: Segment | None
) -> Frame[Header]:
    frame: Frame[Header] = Frame()
    for number, value in fields_of(memoryview(data)):
        if number == 1:
            frame.header = header_type.FromString(bytes(bytes_of(value)))
        elif number == 2:
            frame.chunks.append(_decode_chunk(bytes_of(value), segment))
    return frame


def _decode_chunk(data: memoryview, segment: Segment | None) -> ChunkView:
    fields = dict(fields_of(data))
    tensor, offset = fields.get(1, 0), fields.get(2, 0)
    if not isinstance(tensor, int) or not isinstance(offset, int):
        raise DecodeError("a chunk's tensor or offset is not a number")
    if 4 in fields:
        place = Place.FromString(bytes(bytes_of(fields[4])))
        return ChunkView(tensor, offset, _seen(place, segment), place.start)
    return ChunkView(tensor, offset, bytes_of(fields.get(3, memoryview(b""))))


def _seen(place: Place, segment: Segment | None) -> memoryview:
    if segment is None:
        raise MalformedStreamError("a chunk names a place in shared memory, and its call has none")
    return segment.view(place.start, place.nbytes)


# Larger copies let other threads run meanwhile.
_LARGE = 256 << 10


def split(
    header: Header, tensors: Sequence[torch.Tensor], chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Frame[Header]]:
    """Yield the frames that carry a header and tensors.

    Small tensors share a frame and large ones are split, so that no frame carries more than
    `chunk_bytes` of tensor data. The tensors are read lazily: they must not change before the
    stream ends.
    """
    frame, room = Frame(header), chunk_bytes
    for chunk in _chunks(tensors, chunk_bytes):
        if len(chunk.data) > room:
            yield frame
            frame, room = Frame(), chunk_bytes
        frame.chunks.append(chunk)
        room -= len(chunk.data)
    yield frame


def _chunks(tensors: Sequence[torch.Tensor], chunk_bytes: int) -> Iterator[ChunkView]:
    for index, tensor in enumerate(tensors):
        data = as_bytes(tensor)
        for offset in range(0, len(data), chunk_bytes):
            yield ChunkView(index, offset, data[offset : offset + chunk_bytes])


class Assembler:
    """Puts the chunks of one stream together into tensors.

    Pass each frame's chunks to `add` in the order of their arrival, then call `finish`. The
    constructor takes memory for all tensors: check `tensors.total_nbytes(specs)` against a budget
    before.
    """

    def __init__(
        self, specs: Sequence[TensorSpec], into: Sequence[torch.Tensor] | None = None
    ) -> None:
        """Prepare to receive the described tensors.

        Args:
            specs: Descriptions from the stream's header.
            into: Contiguous CPU tensors of those descriptions, into which the bytes are copied; by
                default new ones.
        """
        self._sizes = [nbytes_of(spec) for spec in specs]
        self._tensors = [allocate(spec) for spec in specs] if into is None else into
        self._views = [as_bytes(tensor) for tensor in self._tensors]
        self._filled = [0] * len(self._sizes)

    def add(self, chunks: Sequence[ChunkView]) -> None:
        """Copy chunks to their places.

        Raises:
            MalformedStreamError: A chunk belongs to no tensor, leaves a gap, overlaps an earlier
                one, or exceeds the tensor.
        """
        for tensor, offset, data, _ in chunks:
            end = self._check(tensor, offset, len(data))
            copy_bytes(self._views[tensor][offset:end], data)
            self._filled[tensor] = end

    def _check(self, tensor: int, offset: int, size: int) -> int:
        if tensor >= len(self._sizes):
            raise MalformedStreamError(f"a chunk is for tensor {tensor} of {len(self._sizes)}")
        if offset != self._filled[tensor]:
            raise MalformedStreamError(
                f"a chunk of tensor {tensor} starts at byte {offset}; "
                f"byte {self._filled[tensor]} comes next"
            )
        if offset + size > self._sizes[tensor]:
            raise MalformedStreamError(
                f"a chunk of tensor {tensor} ends at byte {offset + size}; "
                f"the tensor has {self._sizes[tensor]}"
            )
        return offset + size

    def finish(self) -> list[torch.Tensor]:
        """Return the tensors, whose bytes must all have arrived.

        Raises:
            MalformedStreamError: A tensor is incomplete; the error names the first one.
        """
        pairs = zip(self._filled, self._sizes, strict=True)
        for index, (filled, size) in enumerate(pairs):
            if filled != size:
                raise MalformedStreamError(
                    f"the stream ended after {filled} of {size} bytes of tensor {index}"
                )
        return list(self._tensors)


def whole_tensors(
    specs: Sequence[TensorSpec], chunks: Sequence[ChunkView]
) -> list[torch.Tensor] | None:
    """Return tensors if each of them has arrived in one chunk; otherwise None.

    This is faster than an `Assembler`. Large tensors share the memory of their chunks, which must
    not be used otherwise; they are not aligned, so they suit a single use.

    Args:
        specs: Descriptions from the stream's header.
        chunks: All chunks that came with the header.
    """
    if len(chunks) != len(specs):
        return None
    tensors = []
    for index, (spec, chunk) in enumerate(zip(specs, chunks, strict=True)):
        if chunk.tensor != index or not _is_whole(chunk, nbytes_of(spec)):
            return None
        flat = _flat(chunk.data, decode_dtype(spec.dtype))
        is_flat = len(spec.shape) == 1
        tensors.append(flat if is_flat else flat.view(tuple(spec.shape)))
    return tensors


def _is_whole(chunk: ChunkView, nbytes: int) -> bool:
    in_message = chunk.start is None and not chunk.offset
    return in_message and 0 < nbytes == len(chunk.data)


def _flat(data: memoryview, dtype: torch.dtype) -> torch.Tensor:
    if len(data) < _LARGE:
        return torch.frombuffer(bytearray(data), dtype=dtype)
    return torch.from_numpy(np.asarray(_Writable(data))).view(dtype)


class _Writable:
    """The bytes of a message as writable memory for numpy.

    torch warns about read-only memory, and copying each gradient would slow pushes down.
    """

    def __init__(self, data: memoryview) -> None:
        seen = np.frombuffer(data, np.uint8)
        start, _ = seen.__array_interface__["data"]
        self.__array_interface__ = {**seen.__array_interface__, "data": (start, False)}
        self._seen = seen


def copy_bytes(to: memoryview, data: memoryview) -> None:
    """Copy bytes to memory of the same size."""
    if len(data) < _LARGE:
        to[:] = data
    else:
        # numpy releases the interpreter's lock meanwhile.
        np.copyto(np.frombuffer(to, np.uint8), np.frombuffer(data, np.uint8))
