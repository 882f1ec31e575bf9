"""The fields of encoded messages of protobuf."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import DecodeError

FIRST_TAG = b"\x0a"
"""What a message begins with whose first field has number 1, and bytes or a message."""

_VARINT, _FIXED64, BYTES, _FIXED32 = 0, 1, 2, 5


def first_field(data: bytes | memoryview) -> memoryview | None:
    """Return the bytes of the first field of a message; None if it does not begin with field 1.

    Only the beginning is looked at, however long the message is.
    """
    view = memoryview(data)
    if view[:1] != FIRST_TAG:
        return None
    try:
        return bytes_of(read_value(view, 1, BYTES)[0])
    except (DecodeError, IndexError):
        return None


def bytes_of(value: int | memoryview) -> memoryview:
    """Return the value of a field that has bytes.

    Raises:
        DecodeError: It has a number.
    """
    if isinstance(value, int):
        raise DecodeError("a field has a number instead of bytes")
    return value


def fields_of(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the field numbers and values of an encoded message, in its order."""
    position = 0
    while position < len(data):
        tag, position = read_varint(data, position)
        value, position = read_value(data, position, tag & 7)
        yield tag >> 3, value


def read_value(data: memoryview, position: int, wire_type: int) -> tuple[int | memoryview, int]:
    """Return the value of a field that begins at a position, and where it ends.

    Raises:
        DecodeError: There is none.
        IndexError: It is cut short.
    """
    if wire_type == _VARINT:
        return read_varint(data, position)
    if wire_type == BYTES:
        size, position = read_varint(data, position)
    elif wire_type in (_FIXED32, _FIXED64):
        size = 4 if wire_type == _FIXED32 else 8
    else:
        raise DecodeError(f"unknown wire type {wire_type}")
    end = position + size
    if end > len(data):
        raise DecodeError("a field is cut short")
    value = data[position:end]
    return value if wire_type == BYTES else int.from_bytes(value, "little"), end


def varint(value: int) -> bytes:
    """Return an encoded number."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return the number that begins at a position, and where it ends; raise as `read_value`."""
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
