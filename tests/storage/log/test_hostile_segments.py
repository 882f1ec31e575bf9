"""Segments of a log that somebody has written who knows the format: their checksums are right."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from crc32c import crc32c

from stratagem_proto.errors import DataLossError
from stratagem_proto.v1.log_pb2 import SegmentHead
from stratagem_storage.log import FORMAT, MARK, Entry, LogReader, encode_batch, segment_name

MIB = 1 << 20


def batch(first: int, records: int, contents: bytes, nbytes: int | None = None) -> bytes:
    size = len(contents) if nbytes is None else nbytes
    header = struct.pack("<8sQIQI", MARK, first, records, size, crc32c(contents))
    return header + struct.pack("<I", crc32c(header)) + contents


def record(message: bytes, tensors: bytes, message_bytes: int, tensor_bytes: int) -> bytes:
    return struct.pack("<IQ", message_bytes, tensor_bytes) + message + tensors


def head() -> bytes:
    text = SegmentHead(format=FORMAT, first=1).SerializeToString()
    return b"".join(bytes(piece) for piece in encode_batch(0, [Entry(text)]))


INTACT = batch(2, 1, record(b"", b"", 0, 0))

LIES = {
    "more records than there are": batch(1, 1000, record(b"", b"", 0, 0)),
    "2^32 - 1 records": batch(1, 2**32 - 1, record(b"", b"", 0, 0)),
    "fewer records than there are": batch(1, 1, 2 * record(b"", b"", 0, 0)),
    "no records": batch(1, 0, b""),
    "no records in some bytes": batch(1, 0, record(b"", b"", 0, 0)),
    "a longer message": batch(1, 1, record(b"ab", b"", 2**32 - 1, 0)),
    "longer tensors": batch(1, 1, record(b"", b"ab", 0, 2**64 - 1)),
    "bytes behind the records": batch(1, 1, record(b"", b"", 0, 0) + b"abc"),
    "a longer batch": batch(1, 1, record(b"", b"", 0, 0), nbytes=2**64 - 1),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_batch_whose_sizes_lie_is_none(lie: bytes, tmp_path: Path) -> None:
    path = tmp_path / segment_name(1)
    path.write_bytes(head() + lie)
    tracemalloc.start()
    try:
        reader = LogReader([path])
        assert list(reader.records()) == []
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
    assert reader.tail is not None
    assert reader.tail.offset == len(head())
    path.write_bytes(head() + lie + INTACT)
    with pytest.raises(DataLossError, match="the log is damaged"):
        list(LogReader([path]).records())


def test_a_segment_that_is_larger_than_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / segment_name(1)
    path.write_bytes(head())
    os.truncate(path, 1 << 43)
    with pytest.raises(DataLossError, match="more than half of the memory of this machine"):
        list(LogReader([path]).records())


def test_a_link_and_a_pipe_are_no_segments(tmp_path: Path) -> None:
    path = tmp_path / segment_name(1)
    (tmp_path / "elsewhere").write_bytes(head())
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataLossError, match="links and other special files are not followed"):
        list(LogReader([path]).records())
    path.unlink()
    os.mkfifo(path)
    for read in (LogReader.records, LogReader.heads):
        with pytest.raises(DataLossError, match="links and other special files"):
            list(read(LogReader([path])))
