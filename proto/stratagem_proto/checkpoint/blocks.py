"""Files with a checksum for each block, so that parts of them can be read and checked."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256

from stratagem_proto.errors import DataLossError
from stratagem_proto.stores.places import Place
from stratagem_proto.stores.store import Folder, OpenedFile, size_of

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
        has_digests: Whether it gets digests, for an index that is to be signed.
    """

    syncs: bool = True
    has_digests: bool = False


DURABLY = WriteOptions()


def write_file(
    folder: Folder, name: str, data: Iterable[memoryview], options: WriteOptions = DURABLY
) -> FileEntry:
    """Write a new file, and return once it is there for good.

    Args:
        folder: Its folder.
        name: Its name, which no file of the folder has yet.
        data: Its bytes in consecutive runs.
        options: How it is written.

    Raises:
        FileExistsError: The file exists.
        OSError: The file cannot be written.
    """
    account = Account(options.has_digests)
    folder.write(name, account.counted(data), options.syncs)
    return account.entry()


class Account:
    """Counts what is written, or sent, of a file.

    Args:
        has_digests: Whether the file gets digests.
    """

    def __init__(self, has_digests: bool = False) -> None:
        self._has_digests = has_digests
        self._blocks: list[int] = []
        self._digests = bytearray()
        self._nbytes = 0

    def counted(self, data: Iterable[memoryview]) -> Iterator[memoryview]:
        """Yield the bytes in blocks, each of which has been counted."""
        for block in _blocks(data):
            self._blocks.append(zlib.crc32(block))
            if self._has_digests:
                self._digests += sha256(block).digest()
            self._nbytes += len(block)
            yield block

    def entry(self) -> FileEntry:
        """Return what was counted."""
        digests = bytes(self._digests) if self._has_digests else None
        return FileEntry(self._nbytes, tuple(self._blocks), digests)


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

    folder: Folder
    name: str
    entry: FileEntry

    @property
    def _path(self) -> Place:
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
        with self._opened() as file:
            for position, block in self._intact(file, begin, end):
                low, high = max(begin, position), min(end, position + len(block))
                target[low - begin : high - begin] = block[low - position : high - position]

    def _intact(self, file: OpenedFile, begin: int, end: int) -> Iterator[tuple[int, memoryview]]:
        """Yield the blocks that have the bytes of a range, and their positions."""
        position = begin - begin % BLOCK_BYTES
        file.seek(position)
        stop = min(self.entry.nbytes, end + -end % BLOCK_BYTES)
        while position < stop:
            run = memoryview(file.read(min(self.folder.run_bytes, stop - position)))
            for start in range(0, max(1, len(run)), BLOCK_BYTES):
                block = run[start : start + BLOCK_BYTES]
                self._require_intact(position, block)
                yield position, block
                position += len(block)

    def verify(self) -> None:
        """Read and check the whole file; it raises like `read`."""
        for _ in self.checked():
            pass

    def checked(self) -> Iterator[memoryview]:
        """Yield the whole file, block by block; it raises like `read`."""
        with self._opened() as file:
            for _, block in self._intact(file, 0, self.entry.nbytes):
                yield block

    @contextmanager
    def _opened(self) -> Iterator[OpenedFile]:
        try:
            file = self.folder.file(self.name)
        except FileNotFoundError as error:
            raise DataLossError(
                f"{str(self._path)!r} is missing from the checkpoint. If its server wrote it to "
                "a disk of its own, save to a folder that all tasks share; otherwise restore "
                "an earlier checkpoint"
            ) from error
        with file:
            nbytes = size_of(file)
            if nbytes != self.entry.nbytes:
                raise DataLossError(
                    f"{str(self._path)!r} has {nbytes} bytes where the checkpoint's index says "
                    f"{self.entry.nbytes}; restore an earlier checkpoint"
                )
            yield file

    def _require_intact(self, position: int, block: memoryview) -> None:
        if not block:
            raise DataLossError(f"{str(self._path)!r} ends at byte {position}, before its data")
        if not self._is_intact(position // BLOCK_BYTES, block):
            raise DataLossError(
                f"{str(self._path)!r} is damaged between bytes {position} and "
                f"{position + len(block)}; restore an earlier checkpoint"
            )

    def _is_intact(self, number: int, block: memoryview) -> bool:
        if self.entry.digests is not None:
            known = self.entry.digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]
            return sha256(block).digest() == known
        return self.entry.blocks is None or zlib.crc32(block) == self.entry.blocks[number]
