"""Files with a checksum for each block, so that parts of them can be read and checked."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from stratagem_proto.errors import DataLossError
from stratagem_proto.open_folders import OpenFolder

# To read some rows, at most this many bytes before and after them are read and checked, too.
BLOCK_BYTES = 1 << 20

DIGEST_BYTES = 32


@dataclass(frozen=True)
class FileEntry:
    """The size and the checksums of a file.

    Attributes:
        nbytes: Its size.
        blocks: The CRC-32 of each block of `BLOCK_BYTES`, the last of which may be shorter; None
            for a file of another program, which has no checksums.
        digests: The SHA-256 of each block, one after the other; None unless the index is signed. A
            CRC-32 is no evidence against somebody who chooses the bytes.
    """

    nbytes: int
    blocks: tuple[int, ...] | None
    digests: bytes | None = None


@dataclass(frozen=True)
class WriteOptions:
    """How a file is written.

    Attributes:
        syncs: Whether to wait for the disk; not for a file that need not outlive the machine.
        folder: The folder of the file, if it is open: the path is then not looked up again.
        has_digests: Whether it gets digests, for an index that is to be signed.
    """

    syncs: bool = True
    folder: OpenFolder | None = None
    has_digests: bool = False


DURABLY = WriteOptions()


def write_file(
    path: Path, data: Iterable[memoryview], options: WriteOptions = DURABLY
) -> FileEntry:
    """Write a new file, and return once it is on disk.

    Args:
        path: The file, which must not exist yet.
        data: Its bytes in consecutive runs.
        options: How it is written.

    Raises:
        FileExistsError: The file exists.
        OSError: The file cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    if options.folder is None:
        descriptor = os.open(path, flags, 0o644)
    else:
        descriptor = os.open(path.name, flags, 0o644, dir_fd=options.folder.descriptor)
    try:
        blocks, digests, nbytes = [], bytearray(), 0
        for block in _blocks(data):
            blocks.append(zlib.crc32(block))
            if options.has_digests:
                digests += sha256(block).digest()
            nbytes += len(block)
            _write_all(descriptor, block)
        if options.syncs:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return FileEntry(nbytes, tuple(blocks), bytes(digests) if options.has_digests else None)


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
        for _ in self.checked():
            pass

    def checked(self) -> Iterator[memoryview]:
        """Yield the whole file, block by block; it raises like `read`."""
        scratch = bytearray(BLOCK_BYTES)
        for begin in range(0, max(self.entry.nbytes, 1), BLOCK_BYTES):
            block = memoryview(scratch)[: min(BLOCK_BYTES, self.entry.nbytes - begin)]
            self.read(begin, block)
            yield block

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
        if not self._is_intact(position // BLOCK_BYTES, block):
            raise DataLossError(
                f"{str(self._path)!r} is damaged between bytes {position} and "
                f"{position + len(block)}; restore an earlier checkpoint"
            )

    def _is_intact(self, number: int, block: bytes) -> bool:
        if self.entry.digests is not None:
            known = self.entry.digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]
            return sha256(block).digest() == known
        return self.entry.blocks is None or zlib.crc32(block) == self.entry.blocks[number]


def replace_file(path: Path, data: bytes, syncs: bool = True) -> None:
    """Replace a small file atomically: readers see all of the old file or all of the new one.

    Args:
        path: The file.
        data: Its new bytes.
        syncs: As of `WriteOptions`.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    write_file(partial, [memoryview(data)], WriteOptions(syncs))
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
