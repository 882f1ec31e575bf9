"""Files with a checksum for each block, so that parts of them can be read and checked."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stratagem_proto.errors import DataLossError

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


def write_file(path: Path, data: Iterable[memoryview], syncs: bool = True) -> FileEntry:
    """Write a new file, and return once it is on disk.

    Args:
        path: The file, which must not exist yet.
        data: Its bytes in consecutive runs.
        syncs: Whether to wait for the disk; not for a file that need not outlive the machine.

    Raises:
        FileExistsError: The file exists.
        OSError: The file cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
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


def read_range(path: Path, entry: FileEntry, begin: int, target: memoryview) -> None:
    """Read the bytes of a file from `begin` on into `target` until that is full.

    Raises:
        DataLossError: The file is missing, has another size, or is damaged in this range.
    """
    end = begin + len(target)
    position = begin - begin % BLOCK_BYTES
    try:
        with path.open("rb") as file:
            _require_size(path, entry, os.fstat(file.fileno()).st_size)
            file.seek(position)
            while position < end:
                block = file.read(min(BLOCK_BYTES, entry.nbytes - position))
                _require_intact(path, entry, position, block)
                low, high = max(begin, position), min(end, position + len(block))
                target[low - begin : high - begin] = block[low - position : high - position]
                position += len(block)
    except FileNotFoundError as error:
        raise DataLossError(
            f"{str(path)!r} is missing from the checkpoint. If its server wrote it to "
            "a disk of its own, save to a folder that all tasks share; otherwise restore "
            "an earlier checkpoint"
        ) from error


def verify_file(path: Path, entry: FileEntry) -> None:
    """Read and check a whole file; it raises like `read_range`."""
    scratch = bytearray(BLOCK_BYTES)
    for begin in range(0, max(entry.nbytes, 1), BLOCK_BYTES):
        size = min(BLOCK_BYTES, entry.nbytes - begin)
        read_range(path, entry, begin, memoryview(scratch)[:size])


def _require_size(path: Path, entry: FileEntry, nbytes: int) -> None:
    if nbytes != entry.nbytes:
        raise DataLossError(
            f"{str(path)!r} has {nbytes} bytes where the checkpoint's index says "
            f"{entry.nbytes}; restore an earlier checkpoint"
        )


def _require_intact(path: Path, entry: FileEntry, position: int, block: bytes) -> None:
    if not block:
        raise DataLossError(f"{str(path)!r} ends at byte {position}, before its data")
    if entry.blocks is None:
        return
    if zlib.crc32(block) != entry.blocks[position // BLOCK_BYTES]:
        raise DataLossError(
            f"{str(path)!r} is damaged between bytes {position} and "
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
