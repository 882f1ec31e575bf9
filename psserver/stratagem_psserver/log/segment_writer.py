"""Writing the segments of a log."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from stratagem_proto.v1.log_pb2 import SegmentHead
from stratagem_storage.log import WRITTEN, Entry, Written, encode_batch, first_of, segment_name
from stratagem_storage.stores.local import sync_folder

_PREFIX = "spare-"


class Spares:
    """The files in a folder that the next segments of its log may have.

    A write over blocks that a file has already changes nothing else on disk: 180 KB take 0.35 ms,
    and 0.5 ms at the end of a file that grows (medians); 10 MB take 8 to 38 ms, and 11 to 110 (the
    tenth and the ninetieth percentile on a busy machine).

    They are used by the process that has written them, and by no other one: positions of records
    grow as long as it runs, so that old batches in them are known by their positions.
    """

    def __init__(self, folder: Path, most: int, most_bytes: int) -> None:
        self._folder, self._most, self._most_bytes = folder, most, most_bytes

    def keep(self, segment: Path) -> None:
        """Make a segment that nothing needs a spare, or remove it if there are enough of them."""
        present = self._present()
        room = self._most_bytes - sum(map(_size, present))
        if len(present) == self._most or room <= 0:
            segment.unlink()
            return
        spare = segment.rename(self._folder / f"{_PREFIX}{first_of(segment):020d}")
        if _size(spare) > room:
            os.truncate(spare, room)

    def largest(self) -> Path | None:
        """Return the largest spare, so that few bytes are left when there are many segments."""
        return max(self._present(), key=_size, default=None)

    def remove(self) -> None:
        for path in self._present():
            path.unlink()

    def _present(self) -> list[Path]:
        return sorted(self._folder.glob(f"{_PREFIX}*"))


def _size(path: Path) -> int:
    return os.stat(path).st_size


# The most pieces of one system call; the least that POSIX allows is 16, and Linux allows 1024.
_MOST_PIECES = 1024

# Small batches write zeros behind them where the file ends, so that the next ones write over blocks
# that the file has: 100 bytes then take 0.22 ms, and 0.25 where the file grows (medians).
_ROOM = bytes(256 << 10)
# For larger ones, to write all bytes twice takes as long as it saves.
_SMALL_BYTES = 64 << 10

_NOTE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class SegmentWriter:
    """Writes batches to the segments of a folder; used by one thread at a time.

    Attributes:
        written: The bytes that were written since `written` was last set.
    """

    def __init__(self, folder: Path, head: SegmentHead, segment_bytes: int, spares: Spares) -> None:
        self._folder, self._head = folder, head
        self._segment_bytes, self._spares = segment_bytes, spares
        self._file: int | None = None
        self._note: int | None = None
        # The end of the last batch that is on disk.
        self._end = 0
        # The size of the file.
        self._size = 0
        self._is_full = False
        self.written = 0

    def write(self, first: int, entries: Sequence[Entry]) -> None:
        """Write records, of which the first has a position; see `Writer.write`."""
        if self._file is None or self._is_full or self._end >= self._segment_bytes:
            self._begin(first)
        assert self._file is not None
        self._append(self._file, encode_batch(first, entries))
        self._note_written(first + len(entries) - 1)

    def _note_written(self, position: int) -> None:
        """Note outside of the segments how far they are on disk, so that a lost end is found.

        Nobody waits for the disk: the note is in the memory of the system, which outlives this
        process. An older one that is left by a loss of power says nothing wrong.
        """
        with suppress(OSError):
            if self._note is None:
                self._note = os.open(self._folder / WRITTEN, _NOTE, 0o600)
            os.pwrite(self._note, Written(self._head.incarnation, position).encoded(), 0)

    def begin_run(self, run: bytes, after: int) -> None:
        """Let the next record be the first of a run behind a position; from any thread."""
        head = SegmentHead()
        head.CopyFrom(self._head)
        head.run, head.run_after = run, after
        self._head = head
        self.rotate()

    def _begin(self, first: int) -> None:
        if self._file is not None:
            # Nobody reads what is behind the end: batches of an earlier use of the file, or of a
            # failed attempt, which the next segment repeats. It only takes room on the disk.
            _cut(self._file, self._end)
        self.close()
        path, spare = self._folder / segment_name(first), self._spares.largest()
        # The name exists if an earlier attempt to begin it failed; nothing in it was acknowledged.
        flags = os.O_CREAT | os.O_TRUNC if spare is None else 0
        file = os.open(spare or path, flags | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        self._file, self._end, self._is_full = file, 0, False
        self._size = os.fstat(file).st_size
        try:
            head = self._head
            head.first, head.unix_seconds = first, time.time()
            self._append(file, encode_batch(0, [Entry(head.SerializeToString())]))
            if spare is not None:
                # Only now, since a segment must not have the head of another one.
                spare.rename(path)
            sync_folder(self._folder)
        except OSError:
            self.close()
            raise

    def _append(self, file: int, pieces: Sequence[bytes | memoryview]) -> None:
        # What a failed attempt has left behind the end is written over. The bytes are written
        # again, not only synced again: after an error the system may have dropped them.
        nbytes = sum(map(len, pieces))
        if self._end + nbytes > self._size and nbytes <= _SMALL_BYTES:
            pieces = [*pieces, _ROOM]
        reached = self._end
        for start in range(0, len(pieces), _MOST_PIECES):
            reached = _write_all(file, pieces[start : start + _MOST_PIECES], reached)
        os.fdatasync(file)
        self._end += nbytes
        self._size = max(self._size, reached)
        self.written += nbytes

    def rotate(self) -> None:
        """Let the next write begin another segment; from any thread."""
        self._is_full = True

    def close(self) -> None:
        """Close the present segment; the next write begins another one."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def end(self) -> None:
        self.close()
        if self._note is not None:
            os.close(self._note)
            self._note = None


def _cut(file: int, end: int) -> None:
    os.ftruncate(file, end)
    os.fdatasync(file)


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
