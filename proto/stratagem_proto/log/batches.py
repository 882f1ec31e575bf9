"""Batches: the records that a server writes to its log by one write.

A batch is a header of fixed size and the records one after the other; each record is its own size,
the size of its tensors, a serialised message and the bytes of the tensors. All numbers are little
endian. A server writes a batch only when the one before is on disk, so that a damaged batch with an
intact one of later records behind it was damaged later, while a damaged one at the end was never
written in full. Intact ones of earlier records are left of an earlier use of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from crc32c import crc32c

MARK = b"\x89SGlog\r\n"
"""The first bytes of each batch; no text begins with them."""

# The mark, the position of the first record, the number of records, their bytes and the checksum of
# these; then the checksum of the header up to here.
_HEADER = struct.Struct("<8sQIQI")
_CHECKSUM = struct.Struct("<I")
_SIZES = struct.Struct("<IQ")

HEADER_BYTES = _HEADER.size + _CHECKSUM.size


class Entry(NamedTuple):
    """A record as bytes.

    Attributes:
        message: The serialised message.
        tensors: The bytes of its tensors.
    """

    message: bytes
    tensors: bytes | memoryview = b""

    @property
    def nbytes(self) -> int:
        """The bytes that it takes in a batch."""
        return _SIZES.size + len(self.message) + len(self.tensors)


class BatchHeader(NamedTuple):
    """The header of a batch.

    Attributes:
        first: The position of its first record; 0 for the head of a segment.
        records: The number of records.
        nbytes: The bytes of all records.
        checksum: The CRC-32C of these bytes.
    """

    first: int
    records: int
    nbytes: int
    checksum: int


def encode_batch(first: int, entries: Sequence[Entry]) -> list[bytes | memoryview]:
    """Return the bytes of a batch, in pieces.

    Args:
        first: The position of the first record.
        entries: The records.
    """
    pieces: list[bytes | memoryview] = []
    for entry in entries:
        pieces.append(_SIZES.pack(len(entry.message), len(entry.tensors)) + entry.message)
        if entry.tensors:
            pieces.append(entry.tensors)
    checksum = 0
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    header = _HEADER.pack(MARK, first, len(entries), sum(map(len, pieces)), checksum)
    return [header + _CHECKSUM.pack(crc32c(header)), *pieces]


def decode_header(data: bytes | memoryview) -> BatchHeader | None:
    """Return the header that bytes begin with; None if there is no intact one."""
    if len(data) < HEADER_BYTES:
        return None
    mark, *fields = _HEADER.unpack_from(data)
    (checksum,) = _CHECKSUM.unpack_from(data, _HEADER.size)
    if mark != MARK or checksum != crc32c(data[: _HEADER.size]):
        return None
    return BatchHeader(*fields)


def decode_contents(header: BatchHeader, contents: memoryview) -> list[Entry] | None:
    """Return the records of a batch; None if their bytes are damaged, or their sizes not true.

    Args:
        header: The header of the batch.
        contents: The bytes after the header.
    """
    contents = contents[: header.nbytes]
    if len(contents) < header.nbytes or crc32c(contents) != header.checksum:
        return None
    if header.records * _SIZES.size > header.nbytes:
        return None
    entries = list(islice(_entries(contents), header.records))
    is_whole = len(entries) == header.records
    return entries if is_whole and sum(each.nbytes for each in entries) == header.nbytes else None


def _entries(contents: memoryview) -> Iterator[Entry]:
    """Yield records for as long as their sizes fit into what there is."""
    while len(contents) >= _SIZES.size:
        message, tensors = _SIZES.unpack_from(contents)
        begin = _SIZES.size + message
        if begin + tensors > len(contents):
            return
        yield Entry(bytes(contents[_SIZES.size : begin]), contents[begin : begin + tensors])
        contents = contents[begin + tensors :]
