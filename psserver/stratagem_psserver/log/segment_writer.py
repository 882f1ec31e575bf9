"""Writing the segments of a log."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from stratagem_proto.checkpoint.blocks import sync_folder
from stratagem_proto.log.batches import Entry, encode_batch
from stratagem_proto.log.segments import FORMAT, segment_name
from stratagem_proto.v1.log_pb2 import Kernels, SegmentHead
from stratagem_proto.v1.session_pb2 import Task

# The most pieces of one system call; the least that POSIX allows is 16, and Linux allows 1024.
_MOST_PIECES = 1024


class SegmentWriter:
    """Writes batches to the segments of a folder; used by one thread at a time.

    Args:
        folder: The folder.
        incarnation: The incarnation of the server.
        task: The task of the server.
        kernels: What the bits of its updates depend on.
        segment_bytes: A segment of at least this size is followed by the next one.

    Attributes:
        written: The bytes that were written since `written` was last set.
    """

    def __init__(
        self, folder: Path, incarnation: bytes, task: Task, kernels: Kernels, segment_bytes: int
    ) -> None:
        self._folder, self._segment_bytes = folder, segment_bytes
        self._head = SegmentHead(format=FORMAT, incarnation=incarnation, task=task, kernels=kernels)
        self._file: int | None = None
        # The end of the last batch that is on disk.
        self._end = 0
        self._is_full = False
        self.written = 0

    def write(self, first: int, entries: Sequence[Entry]) -> None:
        """Write records and return once they are on disk.

        Args:
            first: The position of the first one.
            entries: The records.

        Raises:
            OSError: They could not be written; the same records may be written again.
        """
        if self._file is None or self._is_full or self._end >= self._segment_bytes:
            self._begin(first)
        assert self._file is not None
        self._append(self._file, encode_batch(first, entries))

    def _begin(self, first: int) -> None:
        if self._file is not None:
            # A failed attempt may have left records behind the end, which the next segment repeats.
            os.ftruncate(self._file, self._end)
            os.fdatasync(self._file)
        self.close()
        path = self._folder / segment_name(first)
        # It exists if an earlier attempt to begin it failed; nothing in it was acknowledged.
        file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        self._file, self._end, self._is_full = file, 0, False
        try:
            self._head.first, self._head.unix_seconds = first, time.time()
            self._append(file, encode_batch(0, [Entry(self._head.SerializeToString())]))
            sync_folder(self._folder)
        except OSError:
            self.close()
            raise

    def _append(self, file: int, pieces: Sequence[bytes | memoryview]) -> None:
        # What a failed attempt has left behind the end is written over. The bytes are written
        # again, not only synced again: after an error the system may have dropped them.
        end = self._end
        for start in range(0, len(pieces), _MOST_PIECES):
            end = _write_all(file, pieces[start : start + _MOST_PIECES], end)
        os.fdatasync(file)
        self.written += end - self._end
        self._end = end

    def rotate(self) -> None:
        """Let the next write begin another segment; from any thread."""
        self._is_full = True

    def close(self) -> None:
        """Close the present segment; the next write begins another one."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _write_all(file: int, pieces: Sequence[bytes | memoryview], offset: int) -> int:
    """Write bytes at a place of a file, and return where they end."""
    wanted = sum(map(len, pieces))
    done = os.pwritev(file, pieces, offset)
    if done < wanted:
        # The system may write less than it was asked to, for instance when the disk is almost full.
        rest = memoryview(b"".join(pieces))
        while done < wanted:
            done += os.pwrite(file, rest[done:], offset + done)
    return offset + wanted
