"""The files of a log: segments of batches, and the note of how far they were on disk."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c
from google.protobuf.message import DecodeError

from stratagem_proto.errors import DataLossError, FailedPreconditionError
from stratagem_proto.memory import half_of_memory
from stratagem_proto.protocol import release
from stratagem_proto.v1.log_pb2 import LogRecord, SegmentHead
from stratagem_storage.open_folders import OpenFolder
from stratagem_storage.reading_ahead import read_ahead

# A batch is a header of fixed size and the records one after the other; each record is its own
# size, the size of its tensors, a serialised message and the bytes of the tensors. All numbers are
# little endian. A server writes a batch only when the one before is on disk, so that a damaged
# batch with an intact one of later records behind it was damaged later, while a damaged one at the
# end was never written in full. Intact ones of earlier records are left of an earlier use of the
# file.

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


FORMAT = 1

# The batch of a head takes about 150 bytes.
_HEAD_BYTES = 64 << 10

_NAME = re.compile(r"segment-(\d{20})\.log")

WRITTEN = "written"
"""The file that says up to which record a log was on disk."""

# A mark of its own, the position, the incarnation of the log, and the checksum of all three.
_WRITTEN = struct.Struct("<8sQ16s")
_WRITTEN_MARK = b"\x89SGend\r\n"


@dataclass(frozen=True)
class Record:
    """A record of a log.

    Attributes:
        position: Its number; the first record of a log has number 1.
        message: The change.
        tensors: The bytes of its tensors.
    """

    position: int
    message: LogRecord
    tensors: memoryview


@dataclass(frozen=True)
class Tail:
    """What is behind the last record of a log.

    It is what an earlier use of the file has left, zeros for which the next records were to be
    written, or a batch that was not written in full because its server was killed meanwhile.

    Attributes:
        path: The segment.
        offset: Where its last batch ends.
    """

    path: Path
    offset: int

    def unfinished(self, position: int) -> tuple[int, int]:
        """Return how many bytes and records of a batch that was not written in full are there.

        Of the records that is 0 if the header of the batch is not intact. Files that are used again
        have other bytes there as well.

        Args:
            position: The position of the last record before.
        """
        with OpenFolder.at(self.path.parent).file(self.path.name) as file:
            file.seek(self.offset)
            beginning = memoryview(file.read(HEADER_BYTES))
            header = decode_header(beginning)
            if header is None:
                return len((bytes(beginning) + file.read()).rstrip(b"\0")), 0
        is_next = header.first == position + 1
        return (HEADER_BYTES + header.nbytes, header.records) if is_next else (0, 0)


class Written(NamedTuple):
    """Up to which record a log was on disk, as the server that wrote it has noted.

    It is a lower bound: the note itself may be lost with the power of the machine.

    Attributes:
        incarnation: The incarnation of the log.
        position: The position of the record.
    """

    incarnation: bytes
    position: int

    def encoded(self) -> bytes:
        """Return the contents of the file."""
        content = _WRITTEN.pack(_WRITTEN_MARK, self.position, self.incarnation)
        return content + _CHECKSUM.pack(crc32c(content))

    @classmethod
    def read(cls, folder: Path) -> Written | None:
        """Return the note in the folder of a log; None if there is none, or not all of it.

        Raises:
            DataLossError: What has its name is no file.
        """
        nbytes = _WRITTEN.size + _CHECKSUM.size
        with suppress(FileNotFoundError):
            content = OpenFolder.at(folder).read(WRITTEN, nbytes)
            if len(content) == nbytes:
                mark, position, incarnation = _WRITTEN.unpack_from(content)
                (checksum,) = _CHECKSUM.unpack_from(content, _WRITTEN.size)
                if mark == _WRITTEN_MARK and checksum == crc32c(content[: _WRITTEN.size]):
                    return cls(incarnation, position)
        return None

    def require_reached(self, folder: Path, position: int, tail: Tail | None) -> None:
        """Check that a log has all that was written.

        Args:
            folder: The folder of the log.
            position: The position of its last record, or of its image if that is later.
            tail: What is behind the last record.

        Raises:
            DataLossError: It has lost its end.
        """
        if self.position <= position:
            return
        place = f", at byte {tail.offset} of {str(tail.path)!r}" if tail else ""
        raise DataLossError(
            f"the log in {str(folder)!r} has lost its end: it ends with record {position}{place}, "
            f"but record {self.position} was on disk, and what it changed may have been answered. "
            "Restore the files from a backup that is newer, or move the folder away and restore a "
            "checkpoint"
        )


def segment_name(first: int) -> str:
    """Return the name of the segment whose first record has that position."""
    return f"segment-{first:020d}.log"


def first_of(path: Path) -> int:
    """Return the position of the first record of a segment, by its name."""
    found = _NAME.fullmatch(path.name)
    assert found is not None
    return int(found[1])


def segments_in(folder: Path) -> list[Path]:
    """Return the segments of a log, in their order."""
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


class LogReader:
    """Reads the records of a log in their order.

    Args:
        segments: The segments, without gaps and in their order.

    Attributes:
        tail: What is behind the last record, once the reader has come there; None if nothing is.
        position: The position of the last record that was read; that before the first, to begin
            with.
    """

    def __init__(self, segments: Sequence[Path]) -> None:
        self._segments = list(segments)
        # The position with which the next segment begins, by segment.
        self._following = dict(zip(self._segments, map(first_of, self._segments[1:]), strict=False))
        self.tail: Tail | None = None
        self.position = first_of(segments[0]) - 1 if segments else 0

    def heads(self) -> Iterator[tuple[Path, SegmentHead]]:
        """Yield the head of each segment; it raises like `records`."""
        for path in self._segments:
            # A reader of all segments reads them once more, so no more than the head is read here.
            entries = self._batch(path, _beginning(path), 0)
            entries = entries or next(self._batches(path, _read(path)), None)
            if entries is not None:
                yield path, _head(path, entries)

    def records(self) -> Iterator[Record]:
        """Yield all records.

        Raises:
            DataLossError: A record is damaged or missing.
        """
        for path, data in zip(self._segments, read_ahead(_read, self._segments), strict=True):
            batches = self._batches(path, data)
            entries = next(batches, None)
            if entries is None:
                return
            _require_next(path, _head(path, entries).first, self.position)
            for entries in batches:
                yield from self._numbered(path, entries)

    def _numbered(self, path: Path, entries: Sequence[Entry]) -> Iterator[Record]:
        for entry in entries:
            try:
                message = LogRecord.FromString(entry.message)
            except DecodeError as error:
                raise DataLossError(
                    f"record {self.position + 1} in {str(path)!r} is no record of a log; a newer "
                    "release may have written it"
                ) from error
            self.position += 1
            yield Record(self.position, message, memoryview(entry.tensors))

    def _batches(self, path: Path, data: memoryview) -> Iterator[list[Entry]]:
        offset = 0
        if not data:
            self._end(path, 0, data)
        while offset < len(data) and not (offset and self._is_over(path)):
            entries = self._batch(path, data, offset)
            if entries is None:
                data = self._end(path, offset, data)
                continue
            yield entries
            offset += HEADER_BYTES + sum(entry.nbytes for entry in entries)

    def _is_over(self, path: Path) -> bool:
        """Return whether the next segment has the records that follow.

        What is left in this one is then of an earlier use of the file, or an attempt that failed.
        """
        return self._following.get(path) == self.position + 1

    def _batch(self, path: Path, data: memoryview, offset: int) -> list[Entry] | None:
        """Return the records of the batch at a place; None if there is none."""
        header = decode_header(data[offset : offset + HEADER_BYTES])
        if header is None or (offset and header.first <= self.position):
            return None  # or one that an earlier use of the file has left
        entries = decode_contents(header, data[offset + HEADER_BYTES :])
        if not entries:
            return None  # a server writes no batch without records
        if offset:
            _require_next(path, header.first, self.position)
        return entries

    def _end(self, path: Path, offset: int, data: memoryview) -> memoryview:
        """Note that the log ends there, and return what is still to be read.

        Raises:
            DataLossError: More has been written behind, so that this was damaged later.
        """
        is_damaged = path != self._segments[-1]
        if not is_damaged and self._has_later_batch(data, offset):
            # A server may have written both while the file was read.
            data = _read(path)
            if self._batch(path, data, offset) is not None:
                return data
            is_damaged = True
        if is_damaged:
            raise DataLossError(
                f"the log is damaged: {str(path)!r} is not what was written from byte {offset} on, "
                f"behind record {self.position}, and what follows is intact. Restore the file from "
                "a backup, or move the folder away and restore a checkpoint"
            )
        self.tail = Tail(path, offset)
        return data[:offset]

    def _has_later_batch(self, data: memoryview, offset: int) -> bool:
        """Return whether a batch is intact that was written after what belongs to that place."""
        return _has_intact_batch(data[offset + 1 :], self.position + 1 if offset else 0)


def _beginning(path: Path) -> memoryview:
    with OpenFolder.at(path.parent).file(path.name) as file:
        return memoryview(file.read(_HEAD_BYTES))


def _read(path: Path) -> memoryview:
    with OpenFolder.at(path.parent).file(path.name) as file:
        _require_room(path, os.fstat(file.fileno()).st_size)
        data = file.read()
    # It must have kept its name until here: a server writes over files that it has taken it from.
    path.stat()
    return memoryview(data)


def _require_room(path: Path, nbytes: int) -> None:
    most = half_of_memory()
    if nbytes > most:
        raise DataLossError(
            f"{str(path)!r} has {nbytes} bytes, more than half of the memory of this machine: "
            f"{most}. Start the server on the kind of machine that wrote it, or move the folder "
            "away and restore a checkpoint"
        )


def _head(path: Path, entries: Sequence[Entry]) -> SegmentHead:
    try:
        head = SegmentHead.FromString(entries[0].message)
    except DecodeError as error:
        raise DataLossError(f"{str(path)!r} has no head of a segment") from error
    if head.format != FORMAT:
        raise FailedPreconditionError(
            f"{str(path)!r} has format {head.format} of logs, by stratagem "
            f"{head.release or 'of an early release'}; this one, {release() or 'a bare clone'}, "
            f"reads format {FORMAT}. Start the server with that release; to change to another one "
            "all the same, save a checkpoint with it, and begin from that"
        )
    return head


def _require_next(path: Path, first: int, position: int) -> None:
    if first != position + 1:
        raise DataLossError(
            f"record {first} in {str(path)!r} follows record {position}; the segments between are "
            "missing. Restore them from a backup, or move the folder away and restore a checkpoint"
        )


def _has_intact_batch(data: memoryview, least: int) -> bool:
    """Return whether there is an intact batch with records from a position on."""
    text = bytes(data)
    start = text.find(MARK)
    while start >= 0:
        header = decode_header(data[start : start + HEADER_BYTES])
        behind = data[start + HEADER_BYTES :]
        if header is not None and header.first >= least and decode_contents(header, behind):
            return True
        start = text.find(MARK, start + 1)
    return False
