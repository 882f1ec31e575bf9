"""Frames of the streams that carry tensors, on the wire.

Every streamed message of the contract has the layout `header = 1; chunks = 2`. A protobuf `bytes`
field costs two copies more than needed, so frames are put together and taken apart here, byte for
byte as protobuf would; a test holds both to each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.v1 import tensor_pb2
from stratagem_proto.v1.tensor_pb2 import Place
from stratagem_proto.wire.segment import Segment

Header = TypeVar("Header", bound=Message)

_HEADER_TAG = b"\x0a"  # field 1, length-delimited
_CHUNKS_TAG = b"\x12"  # field 2, length-delimited
_TENSOR_TAG = b"\x08"  # field 1, varint
_OFFSET_TAG = b"\x10"  # field 2, varint
_DATA_TAG = b"\x1a"  # field 3, length-delimited
_PLACE_TAG = b"\x22"  # field 4, length-delimited

# Below this protobuf takes messages apart faster, copies included; those whose tensors are in a
# segment consist of many small parts.
_SMALL_BYTES = 4 << 10
_SMALL_PLACED_BYTES = 256 << 10

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class ChunkView(NamedTuple):
    """A run of bytes of one tensor.

    Attributes:
        tensor: Its index.
        offset: First byte within the tensor.
        data: The bytes; may be a view of somebody's memory.
        start: First byte within the segment that they are in, and stay in; None if they travel in
            the message.
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
    """Return the wire bytes of a frame; the chunks' data is copied once."""
    parts: list[bytes | memoryview] = []
    if frame.header is not None:
        parts.append(encode_header(frame.header.SerializeToString()))
    for chunk in frame.chunks:
        prefix = _chunk_prefix(chunk)
        data = chunk.data if chunk.start is None else b""
        parts += (_CHUNKS_TAG, _varint(len(prefix) + len(data)), prefix, data)
    return b"".join(parts)


def encode_header(header: bytes) -> bytes:
    """Return the part of a frame that is its header, of an encoded one."""
    return _HEADER_TAG + _varint(len(header)) + header


def _chunk_prefix(chunk: ChunkView) -> bytes:
    """Return all of a chunk's message but data itself; proto3 leaves zeros out."""
    prefix = b""
    if chunk.tensor:
        prefix += _TENSOR_TAG + _varint(chunk.tensor)
    if chunk.offset:
        prefix += _OFFSET_TAG + _varint(chunk.offset)
    if chunk.start is not None:
        place = Place(start=chunk.start, nbytes=len(chunk.data)).SerializeToString()
        return prefix + _PLACE_TAG + _varint(len(place)) + place
    return prefix + _DATA_TAG + _varint(len(chunk.data))


def decode_frame(
    data: bytes | memoryview, header_type: type[Header], segment: Segment | None = None
) -> Frame[Header]:
    """Take a frame apart; the chunks of large ones are views of `data`, not copies.

    Args:
        data: The frame.
        header_type: Of the header, if there is one.
        segment: What chunks name places in; None if there is none.

    Raises:
        MalformedStreamError: The bytes are no such message, or name a place that there is not.
    """
    try:
        if len(data) <= (_SMALL_PLACED_BYTES if segment else _SMALL_BYTES):
            return _decode_small(data, header_type, segment)
        return _decode_large(data, header_type, segment)
    except (DecodeError, IndexError) as error:
        raise _malformed(len(data), header_type, error) from error


def take_header(
    data: bytes | memoryview, header_type: type[Header]
) -> tuple[Header, memoryview] | None:
    """Return the header of a frame that begins with one, and what comes behind it.

    That is a frame, too, of the chunks alone.

    Raises:
        MalformedStreamError: The bytes are no such message.
    """
    view = memoryview(data)
    if view[:1] != _HEADER_TAG:
        return None
    try:
        header, begin = _read_value(view, 1, _BYTES)
        return header_type.FromString(bytes(_bytes(header))), view[begin:]
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
    for number, value in _fields(memoryview(data)):
        if number == 1:
            frame.header = header_type.FromString(bytes(_bytes(value)))
        elif number == 2:
            frame.chunks.append(_decode_chunk(_bytes(value), segment))
    return frame


def _decode_chunk(data: memoryview, segment: Segment | None) -> ChunkView:
    fields = dict(_fields(data))
    tensor, offset = fields.get(1, 0), fields.get(2, 0)
    if not isinstance(tensor, int) or not isinstance(offset, int):
        raise DecodeError("a chunk's tensor or offset is no number")
    if 4 in fields:
        place = Place.FromString(bytes(_bytes(fields[4])))
        return ChunkView(tensor, offset, _seen(place, segment), place.start)
    return ChunkView(tensor, offset, _bytes(fields.get(3, memoryview(b""))))


def _seen(place: Place, segment: Segment | None) -> memoryview:
    if segment is None:
        raise MalformedStreamError("a chunk names a place in shared memory, and its call has none")
    return segment.view(place.start, place.nbytes)


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise DecodeError("a number stands where bytes are expected")
    return value


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield field numbers and values of a message, in the order of the wire."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        value, position = _read_value(data, position, tag & 7)
        yield tag >> 3, value


def _read_value(data: memoryview, position: int, wire_type: int) -> tuple[int | memoryview, int]:
    if wire_type == _VARINT:
        return _read_varint(data, position)
    if wire_type == _BYTES:
        size, position = _read_varint(data, position)
    elif wire_type in (_FIXED32, _FIXED64):
        size = 4 if wire_type == _FIXED32 else 8
    else:
        raise DecodeError(f"unknown wire type {wire_type}")
    if position + size > len(data):
        raise DecodeError("a field is cut short")
    return data[position : position + size], position + size


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise DecodeError("a number has more than 64 bits")
