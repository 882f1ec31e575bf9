"""What a log has on disk when the disk fails now and then."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stratagem_proto.v1.log_pb2 import LogRecord, SegmentHead
from stratagem_psserver.log.segment_writer import SegmentWriter, Spares
from stratagem_storage.log import FORMAT, Entry, LogReader, segment_name, segments_in

ROOMY = 1 << 30


def writer_in(folder: Path) -> SegmentWriter:
    return SegmentWriter(folder, SegmentHead(format=FORMAT), 1 << 20, Spares(folder, 2, ROOMY))


def entries() -> list[Entry]:
    return [Entry(LogRecord(unix_seconds=1.0).SerializeToString())]


def positions(folder: Path) -> list[int]:
    return [record.position for record in LogReader(segments_in(folder)).records()]


def failing(file: int) -> None:
    raise OSError(errno.EIO, "the disk fails")


def test_a_record_that_failed_at_the_end_of_a_segment_is_in_the_next_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_in(tmp_path)
    writer.write(1, entries())
    with monkeypatch.context() as disk:
        disk.setattr(os, "fdatasync", failing)
        with pytest.raises(OSError, match="fails"):
            writer.write(2, entries())
    writer.rotate()
    writer.write(2, entries())
    writer.close()
    assert len(segments_in(tmp_path)) == 2
    assert positions(tmp_path) == [1, 2]


def test_small_batches_write_over_what_the_file_has(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    writer.write(1, entries())
    (path,) = segments_in(tmp_path)
    size = path.stat().st_size
    for first in range(2, 50):
        writer.write(first, entries())
    assert path.stat().st_size == size
    writer.rotate()
    writer.write(50, entries())
    # Nothing is left behind the end of a segment that others follow.
    assert path.stat().st_size < size
    writer.close()
    assert positions(tmp_path) == [*range(1, 51)]


def test_a_segment_writes_over_the_file_of_one_that_nothing_needs(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    for first in range(1, 20):
        writer.write(first, entries())
    writer.rotate()
    writer.write(20, entries())
    old = segments_in(tmp_path)[0]
    inode = old.stat().st_ino
    Spares(tmp_path, 2, ROOMY).keep(old)
    writer.rotate()
    for first in range(21, 30):
        writer.write(first, entries())
        assert positions(tmp_path) == [*range(20, first + 1)]
    assert (tmp_path / segment_name(21)).stat().st_ino == inode
    assert not list(tmp_path.glob("spare-*"))
    writer.close()


def test_a_segment_that_could_not_be_begun_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_in(tmp_path)
    for first in range(1, 4):
        writer.rotate()
        writer.write(first, entries())
    Spares(tmp_path, 2, ROOMY).keep(segments_in(tmp_path)[0])
    writer.rotate()
    for name in ("fdatasync", "fsync"):
        with monkeypatch.context() as disk:
            disk.setattr(os, name, failing)
            with pytest.raises(OSError, match="fails"):
                writer.write(4, entries())
    writer.write(4, entries())
    writer.close()
    assert positions(tmp_path) == [2, 3, 4]


def test_there_are_no_more_spares_than_said(tmp_path: Path) -> None:
    sizes = [10, 30, 20, 40]
    for first, size in enumerate(sizes, 1):
        (tmp_path / segment_name(first)).write_bytes(bytes(size))
    spares = Spares(tmp_path, 2, 35)
    for path in segments_in(tmp_path):
        spares.keep(path)
    assert sorted(each.stat().st_size for each in tmp_path.iterdir()) == [10, 25]
    largest = spares.largest()
    assert largest is not None
    assert largest.stat().st_size == 25
    spares.remove()
    assert not list(tmp_path.iterdir())
