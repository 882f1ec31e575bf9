"""What a log has on disk when the disk fails now and then."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stratagem_proto.log.batches import Entry
from stratagem_proto.log.segments import LogReader, segments_in
from stratagem_proto.v1.log_pb2 import Kernels, LogRecord
from stratagem_proto.v1.session_pb2 import Task
from stratagem_psserver.log.segment_writer import SegmentWriter


def entries() -> list[Entry]:
    return [Entry(LogRecord(unix_seconds=1.0).SerializeToString())]


def test_a_record_that_failed_at_the_end_of_a_segment_is_in_the_next_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SegmentWriter(tmp_path, bytes(16), Task(job="ps"), Kernels(), 1 << 20)
    writer.write(1, entries())

    def fail(file: int) -> None:
        raise OSError(errno.EIO, "the disk fails")

    with monkeypatch.context() as failing:
        failing.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="fails"):
            writer.write(2, entries())
    writer.rotate()
    writer.write(2, entries())
    writer.close()
    assert len(segments_in(tmp_path)) == 2
    assert [record.position for record in LogReader(segments_in(tmp_path)).records()] == [1, 2]
