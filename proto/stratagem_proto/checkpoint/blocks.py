"""Files with a checksum for each block, so that parts of them can be read and checked."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from stratagem_proto.errors import DataLossError
from stratagem_proto.open_folders import OpenFolder

# To read some rows, at most this many bytes before and after them are read and checked, too.
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class FileEntry:
    """The size and the checksums of a file.

    Attributes:
        nbytes: Its size.
        blocks: The CRC-32 of each block of `BLOCK_BYTES`, the last of which may be shorter; None
            for a file of another program, which has no checksums.
    """

    nbytes: int
    blocks: tuple[int, ...] | None


def write_file(
    path: Path, data: Iterable[memoryview], syncs: bool = True, folder: OpenFolder | None = None
) -> FileEntry:
    """Write a new file, and return once it is on disk.

    Args:
        path: The file, which must not exist yet.
        data: Its bytes in consecutive runs.
        syncs: Whether to wait for the disk; not for a file that need not outlive the machine.
        folder: The folder of the file, if it is open: the path is then not looked up again.

    Raises:
        FileExistsError: The file exists.
        OSError: The file cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    if folder is None:
        descriptor = os.open(path, flags, 0o644)
    else:
        descriptor = os.open(path.name, flags, 0o644, dir_fd=folder.descriptor)
    try:
        blocks, nbytes = [], 0
        for block in _blocks(data):
            blocks.append(zlib.crc32(block))
            nbytes += len(block)
            _write_all(descriptor, block)
        if syncs:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return FileEntry(nbytes, tuple(blocks))


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _blocks(data: Iterable[memoryview]) -> Iterator[memoryview]:
    """Yield the same bytes in blocks of `BLOCK_BYTES`; the last may be shorter."""
    rest = bytearray()
    for run in data:
        view = run.cast("B")
        if rest:
            taken = BLOCK_BYTES - len(rest)
            rest += view[:taken]
            view = view[taken:]
            if len(rest) < BLOCK_BYTES:
                continue
            yield memoryview(bytes(rest))
            rest.clear()
        whole = len(view) - len(view) % BLOCK_BYTES
        for start in range(0, whole, BLOCK_BYTES):
            yield view[start : start + BLOCK_BYTES]
        rest += view[whole:]
    if rest:
        yield memoryview(bytes(rest))


@dataclass(frozen=True)
class CheckedFile:
    """A file of an open folder, of which nothing is read unchecked.

    Attributes:
        folder: The folder.
        name: The name of the file in it.
        entry: The size and the checksums that the file has to have.
    """

    folder: OpenFolder
    name: str
    entry: FileEntry

    @property
    def _path(self) -> Path:
        return self.folder.path / self.name

    def require_size(self) -> None:
        """Check the size, before memory is taken for what the file is said to contain.

        Raises:
            DataLossError: The file is missing, is not a regular one, or has another size.
        """
        with self._opened():
            pass

    def read(self, begin: int, target: memoryview) -> None:
        """Read the bytes from `begin` on into `target` until that is full.

        Raises:
            DataLossError: As by `require_size`; or the file is damaged in this range.
        """
        end = begin + len(target)
        position = begin - begin % BLOCK_BYTES
        with self._opened() as file:
            file.seek(position)
            while position < end:
                block = file.read(min(BLOCK_BYTES, self.entry.nbytes - position))
                self._require_intact(position, block)
                low, high = max(begin, position), min(end, position + len(block))
                target[low - begin : high - begin] = block[low - position : high - position]
                position += len(block)

    def verify(self) -> None:
        """Read and check the whole file; it raises like `read`."""
        scratch = bytearray(BLOCK_BYTES)
        for begin in range(0, max(self.entry.nbytes, 1), BLOCK_BYTES):
            size = min(BLOCK_BYTES, self.entry.nbytes - begin)
            self.read(begin, memoryview(scratch)[:size])

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        try:
            file = self.folder.file(self.name)
        except FileNotFoundError as error:
            raise DataLossError(
                f"{str(self._path)!r} is missing from the checkpoint. If its server wrote it to "
                "a disk of its own, save to a folder that all tasks share; otherwise restore "
                "an earlier checkpoint"
            ) from error
        with file:
            nbytes = os.fstat(file.fileno()).st_size
            if nbytes != self.entry.nbytes:
                raise DataLossError(
                    f"{str(self._path)!r} has {nbytes} bytes where the checkpoint's index says "
                    f"{self.entry.nbytes}; restore an earlier checkpoint"
                )
            yield file

    def _require_intact(self, position: int, block: bytes) -> None:
        if not block:
            raise DataLossError(f"{str(self._path)!r} ends at byte {position}, before its data")
        if self.entry.blocks is None:
            return
        if zlib.crc32(block) != self.entry.blocks[position // BLOCK_BYTES]:
            raise DataLossError(
                f"{str(self._path)!r} is damaged between bytes {position} and "
                f"{position + len(block)}; restore an earlier checkpoint"
            )


def replace_file(path: Path, data: bytes, syncs: bool = True) -> None:
    """Replace a small file atomically: readers see all of the old file or all of the new one.

    Args:
        path: The file.
        data: Its new bytes.
        syncs: As of `write_file`.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    write_file(partial, [memoryview(data)], syncs)
    os.replace(partial, path)
    if syncs:
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
