"""Tables in files: which of their rows are in memory, within a budget."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import torch

from stratagem_proto.errors import DataLossError, ResourceExhaustedError, StratagemError

_PAGE = mmap.PAGESIZE
_READ_BYTES = 1 << 20

# Flags of sync_file_range(2), which Python does not have.
_WAIT_BEFORE, _WRITE = 1, 2
_LIBC = ctypes.CDLL(None, use_errno=True)

# A block has this heat once it is asked for, and one more with each request for it; one that only a
# snapshot reads has the least, so that a checkpoint does not drive hot rows out.
_FIRST_HEAT, _MOST_HEAT, _SCANNED = 4, 255, 1

# What is evicted at once is this part of the budget.
_SHARE = 16

_Blocks = npt.NDArray[np.int64]


@dataclass
class PagingCounts:
    """What a server has done with its tables in files.

    Attributes:
        found: Rows that were asked for and were in memory.
        missed: Rows that were asked for and were not.
        blocks_read: Blocks that were brought into memory.
        bytes_read: Their bytes.
        bytes_evicted: Bytes that were taken out of memory; those that had changed were written.
    """

    found: int = 0
    missed: int = 0
    blocks_read: int = 0
    bytes_read: int = 0
    bytes_evicted: int = 0


class TableFile:
    """The memory of one arena: a file that has no name, mapped into memory.

    It grows in place. Whoever has a tensor of before sees the same bytes in it.

    Args:
        folder: The folder that decides on which disk it is.
        row_bytes: The bytes of a row.
        name: The variable, for messages.
    """

    def __init__(self, folder: str, row_bytes: int, name: str) -> None:
        self.row_bytes, self.name, self._folder = row_bytes, name, folder
        try:
            self._file, path = tempfile.mkstemp(dir=folder, prefix="stratagem-table-")
        except OSError as error:
            raise self._no_room(error, 0) from error
        weakref.finalize(self, os.close, self._file)
        os.unlink(path)
        # Else each missing page would bring its neighbours.
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)
        self.nbytes = 0
        self._map: mmap.mmap | None = None

    def allocated(self, nbytes: int) -> torch.Tensor:
        """Return the first bytes of the file, which the disk has room for.

        Raises:
            ResourceExhaustedError: It has not; nothing has changed.
        """
        length = max(_PAGE, -(-nbytes // _PAGE) * _PAGE)
        if length > self.nbytes:
            try:
                # Now, since a page that finds no room when it is written ends the process.
                os.posix_fallocate(self._file, 0, length)
            except OSError as error:
                raise self._no_room(error, length) from error
            self._map = mmap.mmap(self._file, length)
            self._map.madvise(mmap.MADV_RANDOM)
            self.nbytes = length
        assert self._map is not None
        return torch.frombuffer(self._map, dtype=torch.uint8)[:nbytes]

    def _no_room(self, error: OSError, length: int) -> ResourceExhaustedError:
        return ResourceExhaustedError(
            f"{self.name!r} needs a file of {length} bytes in {self._folder!r}, which the disk "
            f"refuses: {error.strerror}; make room there, use more servers, give another "
            "--table-folder, or limit the table's rows",
            variable=self.name,
        )

    def read(self, spans: list[tuple[int, int]]) -> int:
        """Bring spans of bytes into memory, all at once; return how many bytes they have.

        Raises:
            OSError: The disk could not read them, or could not write others before.
        """
        file, total = self._file, 0
        for begin, stop in spans:
            os.posix_fadvise(file, begin, stop - begin, os.POSIX_FADV_WILLNEED)
        for begin, stop in spans:
            # An access to the mapping would end the process where the disk cannot read.
            for place in range(begin, stop, _READ_BYTES):
                os.pread(file, min(_READ_BYTES, stop - place), place)
            total += stop - begin
        # What could not be written is taken for written by the system, and would be old if read.
        self._sync(0, _PAGE, _WAIT_BEFORE)
        return total

    def leave(self, spans: list[tuple[int, int]]) -> None:
        """Begin to write what has changed within spans.

        Raises:
            OSError: The disk could not write.
        """
        for begin, stop in spans:
            self._sync(begin, stop - begin, _WRITE)

    def drop(self, spans: list[tuple[int, int]]) -> None:
        """Take spans out of memory that have left, once they are written.

        Raises:
            OSError: The disk could not write.
        """
        assert self._map is not None
        first, last = min(spans)[0], max(spans)[1]
        self._sync(first, last - first, _WAIT_BEFORE)
        for begin, stop in spans:
            # A fault has mapped its neighbours, and what is mapped stays.
            self._map.madvise(mmap.MADV_DONTNEED, begin, stop - begin)
            os.posix_fadvise(self._file, begin, stop - begin, os.POSIX_FADV_DONTNEED)

    def _sync(self, begin: int, nbytes: int, flags: int) -> None:
        place, length = ctypes.c_int64(begin), ctypes.c_int64(nbytes)
        if _LIBC.sync_file_range(self._file, place, length, ctypes.c_uint(flags)):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


class TablePages:
    """Which blocks of a table's rows are in memory.

    Args:
        disk: The disk of the server.
        name: The table.
        row_bytes: The bytes of a row of the value.
    """

    def __init__(self, disk: TableDisk, name: str, row_bytes: int) -> None:
        self._disk, self.name = disk, name
        self.rows_of_block = max(1, _PAGE // max(1, row_bytes))
        self.files = WeakSet[TableFile]()
        # The heat of each block; 0 for one that is not in memory.
        self.heat = np.zeros(0, np.uint8)
        self.resident = 0
        disk.add(self)

    @property
    def block_bytes(self) -> int:
        return self.rows_of_block * sum(file.row_bytes for file in list(self.files))

    def file(self, row_bytes: int, name: str) -> TableFile:
        """Return a new file for an arena of the table."""
        file = TableFile(self._disk.folder, row_bytes, name)
        self.files.add(file)
        return file

    def grow(self, rows: int) -> None:
        """Note that the table has room for so many rows."""
        blocks = -(-rows // self.rows_of_block)
        with self._disk.lock:
            if blocks > len(self.heat):
                self.heat = np.concatenate((self.heat, np.zeros(blocks - len(self.heat), np.uint8)))

    def bring(self, positions: torch.Tensor, heat: int = _FIRST_HEAT) -> None:
        """Have rows in memory; on any thread.

        Args:
            positions: The positions of the rows; negative ones count for nothing.
            heat: The heat of blocks that are not in memory.

        Raises:
            DataLossError: The disk has failed.
        """
        blocks = positions.numpy() // self.rows_of_block
        if len(blocks) and np.minimum.reduce(blocks) < 0:
            blocks = blocks[blocks >= 0]
        self._disk.bring(self, blocks, heat)

    def scan(self, positions: torch.Tensor) -> None:
        """Do as `bring`, for rows that nobody has asked for."""
        self.bring(positions, _SCANNED)

    def spans(self, file: TableFile, blocks: _Blocks) -> list[tuple[int, int]]:
        """Return where ascending blocks are in a file, in whole pages."""
        if not len(blocks):
            return []
        ends = np.flatnonzero(np.diff(blocks) != 1)
        firsts = blocks[np.concatenate(([0], ends + 1))]
        lasts = blocks[np.concatenate((ends, [len(blocks) - 1]))]
        size = self.rows_of_block * file.row_bytes
        begins = firsts * size // _PAGE * _PAGE
        stops = np.minimum(-((lasts + 1) * size // -_PAGE) * _PAGE, file.nbytes)
        return [(b, s) for b, s in zip(begins.tolist(), stops.tolist(), strict=True) if b < s]


class TableDisk:
    """The tables of a server that are in files, and how much of them may be in memory.

    The files are no second truth: they have no names and end with the process. What a crash loses
    is what the durability says.

    Args:
        budget: Most bytes of rows in memory.
        folder: The folder for the files.
    """

    def __init__(self, budget: int, folder: str) -> None:
        self.budget, self.folder = budget, folder
        self.counts = PagingCounts()
        self.lock = threading.Lock()
        self._tables = WeakSet[TablePages]()
        self._failure: StratagemError | None = None
        # What is being written, and is in memory until then.
        self._leaving: list[tuple[TableFile, list[tuple[int, int]]]] = []
        self._hand = 0

    def add(self, table: TablePages) -> None:
        with self.lock:
            self._tables.add(table)

    @property
    def resident_bytes(self) -> int:
        """The bytes of rows in memory."""
        return sum(table.resident * table.block_bytes for table in list(self._tables))

    @property
    def file_bytes(self) -> int:
        """The bytes of all files."""
        return sum(file.nbytes for table in list(self._tables) for file in list(table.files))

    def bring(self, table: TablePages, blocks: _Blocks, heat: int) -> None:
        """Do as `TablePages.bring`, of blocks which may repeat."""
        with self.lock:
            if self._failure is not None:
                raise self._failure
            missing = self._heated(table, blocks, heat)
            if not len(missing):
                return
            table.heat[missing] = heat
            table.resident += len(missing)
            try:
                self._make_room()
            except OSError as error:
                raise self._failed(table, "write", error) from error
        try:
            nbytes = sum(file.read(table.spans(file, missing)) for file in list(table.files))
        except OSError as error:
            with self.lock:
                raise self._failed(table, "read", error) from error
        with self.lock:
            self.counts.blocks_read += len(missing)
            self.counts.bytes_read += nbytes

    def _heated(self, table: TablePages, blocks: _Blocks, heat: int) -> _Blocks:
        """Add heat to blocks, and return those that are not in memory, ascending."""
        before = table.heat[blocks]
        found = int(np.count_nonzero(before))
        if heat != _SCANNED:
            self.counts.found += found
            self.counts.missed += len(blocks) - found
            table.heat[blocks] = before + ((before > 0) & (before < _MOST_HEAT))
        return np.unique(blocks[before == 0]) if found < len(blocks) else blocks[:0]

    def _failed(self, table: TablePages, what: str, error: OSError) -> StratagemError:
        """Refuse everything from now on: rows may be lost, or only a part of them written."""
        self._failure = DataLossError(
            f"the disk of the table files in {self.folder!r} could not {what} rows of "
            f"{table.name!r}: {error.strerror}; no table of this server is read or changed any "
            "more. Start the server again on another disk: it goes on from its log, its backup or "
            "a checkpoint",
            variable=table.name,
        )
        return self._failure

    def _make_room(self) -> None:
        """Take the coldest blocks out of memory, if there are too many; the lock is held."""
        # What is leaving is in memory for one turn more.
        most = self.budget - 2 * self.budget // _SHARE
        if (resident := self.resident_bytes) <= most + self.budget // _SHARE:
            return
        leaving, self._leaving = self._leaving, []
        for file, spans in leaving:
            file.drop(spans)
        for table, blocks in self._coldest(resident - most):
            table.heat[blocks] = 0
            table.resident -= len(blocks)
            self.counts.bytes_evicted += len(blocks) * table.block_bytes
            for file in list(table.files):
                if spans := table.spans(file, blocks):
                    file.leave(spans)
                    self._leaving.append((file, spans))

    def _coldest(self, nbytes: int) -> Iterator[tuple[TablePages, _Blocks]]:
        """Yield the coldest blocks of so many bytes, ascending for each table."""
        tables = [table for table in self._tables if table.resident and table.block_bytes]
        blocks = [np.flatnonzero(table.heat) for table in tables]
        heats = [table.heat[of] for table, of in zip(tables, blocks, strict=True)]
        heat = np.concatenate(heats)
        # The next of those that are equally cold, as the hand of a clock goes on.
        turn = self._hand % len(heat)
        order = (np.argsort(np.roll(heat, -turn), kind="stable") + turn) % len(heat)
        each_size = [table.block_bytes for table in tables]
        sizes = np.repeat(each_size, list(map(len, blocks)))
        count = int(np.searchsorted(np.cumsum(sizes[order]), nbytes)) + 1
        self._hand += count
        chosen = np.zeros(len(heat), np.bool_)
        chosen[order[:count]] = True
        # Without this, what was hot once would stay for ever.
        if heat[order[min(count, len(order)) - 1]] > _SCANNED:
            for table, of, each in zip(tables, blocks, heats, strict=True):
                table.heat[of] = each - (each >> 1)
        splits = np.split(chosen, np.cumsum(list(map(len, blocks)))[:-1])
        for table, of, mask in zip(tables, blocks, splits, strict=True):
            yield table, of[mask]
