"""Segments: the files of a log, in the order of the records that they contain."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from stratagem_proto.errors import DataLossError
from stratagem_proto.log.batches import (
    HEADER_BYTES,
    MARK,
    Entry,
    decode_contents,
    decode_header,
)
from stratagem_proto.memory import half_of_memory
from stratagem_proto.open_folders import OpenFolder
from stratagem_proto.reading_ahead import read_ahead
from stratagem_proto.v1.log_pb2 import LogRecord, SegmentHead

FORMAT = 1

# The batch of a head takes about 150 bytes.
_HEAD_BYTES = 64 << 10

_NAME = re.compile(r"segment-(\d{20})\.log")


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
        raise DataLossError(
            f"{str(path)!r} has format {head.format} of logs; this release reads format {FORMAT}. "
            "Start the server with the release that wrote it"
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
