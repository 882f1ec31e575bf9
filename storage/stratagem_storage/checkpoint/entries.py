"""The tensors in the files of a checkpoint: their places, and checksums of each block."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256

import torch

from stratagem_proto.errors import DataLossError
from stratagem_proto.programs.random_rows import stored_rows
from stratagem_proto.v1.checkpoint_pb2 import (
    ByteDelta,
    ChangedRows,
    SavedPart,
    SavedTensor,
    StoredRows,
)
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import encode_dtype, nbytes_of
from stratagem_storage.stores.places import Place
from stratagem_storage.stores.store import Folder, OpenedFile, size_of

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

    def read_all(self, extents: Sequence[tuple[int, memoryview]]) -> None:
        """Read several ranges, each block of the file once; it raises like `read`.

        Args:
            extents: Positions, ascending, and what is to be filled with the bytes from there on.
        """
        with self._opened() as file:
            # The last block that was read: the next range may begin in it.
            position, block = 0, memoryview(b"")
            for begin, target in extents:
                end, done = begin + len(target), begin
                if position <= begin < position + len(block):
                    taken = block[begin - position : end - position]
                    target[: len(taken)] = taken
                    done += len(taken)
                if done < end:
                    for position, block in self._intact(file, done, end):
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


KEYS, TOUCHED, SEEN, SIGHTS = "[keys]", "[touched]", "[seen]", "[sights]"
COUNTS = "[counts]"
"""The endings of the names of a table's companion tensors; see `StoredRows`."""

_COMPANION = re.compile(r"\[(keys|touched|counts|seen|sights)\]\Z")


def companion(table: str, what: str, count: int) -> VariableSpec:
    """Return the description of one of a table's companion tensors.

    These are the keys of its rows and what else a table needs beside its values.
    """
    dtype = torch.int32 if what == COUNTS else torch.int64
    tensor = TensorSpec(dtype=encode_dtype(dtype), shape=[count])
    return VariableSpec(name=table + what, tensor=tensor)


def is_companion(name: str, tensors: Mapping[str, TensorEntry]) -> bool:
    """Return whether a tensor is a companion of a table among these."""
    table = tensors.get(_COMPANION.sub("", name))
    return table is not None and table.rows is not None and table.name != name


NUMBER_BYTES = 8
"""The bytes of the number of a row."""


@dataclass(frozen=True)
class TensorEntry:
    """The place of a tensor in a checkpoint.

    Attributes:
        spec: The server's description of the variable.
        file: The name of the file.
        begin: The position of the first byte in the file.
        version: The version of the variable.
        rows: The stored rows, if the variable is a table or a slot of one.
        changed: The rows that differ from those of the base, if the file has only these.
        delta: What makes it of the base's tensor, if the file has only that.
    """

    spec: VariableSpec
    file: str
    begin: int
    version: int = 1
    rows: StoredRows | None = None
    changed: ChangedRows | None = None
    delta: ByteDelta | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def tensor(self) -> TensorSpec:
        """The description of the stored tensor."""
        return stored_tensor(self.spec, self.rows)

    @property
    def needs_base(self) -> bool:
        """Whether the tensor of the base is read beside what the file has."""
        return self.changed is not None or self.delta is not None

    @property
    def nbytes(self) -> int:
        """The bytes of the stored tensor, those of the base included."""
        return nbytes_of(self.tensor)

    @property
    def extents(self) -> Sequence[tuple[int, int]]:
        """The first byte and the number of bytes of what the file has of it."""
        if self.delta is not None:
            return [(self.begin, self.delta.nbytes)]
        if self.changed is None:
            return [(self.begin, self.nbytes)]
        count = self.changed.count
        numbers = self.changed.begin, count * NUMBER_BYTES
        return [numbers, (self.begin, count * row_nbytes(self.tensor))]


def row_count(tensor: TensorSpec) -> int:
    """Return how many rows a tensor has: one if it has no dimensions."""
    return tensor.shape[0] if tensor.shape else 1


def row_nbytes(tensor: TensorSpec) -> int:
    """Return the bytes of one row."""
    return nbytes_of(some_rows(tensor, 1))


def are_alike(one: TensorSpec, other: TensorSpec) -> bool:
    """Return whether rows of two tensors are of the same dtype and shape."""
    return (one.dtype, one.shape[1:], bool(one.shape)) == (
        other.dtype,
        other.shape[1:],
        bool(other.shape),
    )


def some_rows(tensor: TensorSpec, count: int) -> TensorSpec:
    """Return the description of some rows of a tensor."""
    return TensorSpec(dtype=tensor.dtype, shape=(count, *tensor.shape[1:]))


def stored_tensor(spec: VariableSpec, rows: StoredRows | None) -> TensorSpec:
    """Return the description of the tensor that is stored for a variable: all rows or some."""
    return spec.tensor if rows is None else stored_rows(spec, rows.count)


@dataclass(frozen=True)
class TensorFile:
    """A written file of tensors.

    Attributes:
        name: The name of the file.
        file: Its size and checksums.
        tensors: The tensors in it.
    """

    name: str
    file: FileEntry
    tensors: Sequence[TensorEntry]

    def encoded(self) -> SavedPart:
        """Return it as messages describe it, without the state of a server."""
        return SavedPart(
            name=self.name,
            nbytes=self.file.nbytes,
            blocks=self.file.blocks,
            digests=self.file.digests,
            tensors=[
                SavedTensor(
                    spec=each.spec,
                    begin=each.begin,
                    version=each.version,
                    rows=each.rows,
                    changed=each.changed,
                    delta=each.delta,
                )
                for each in self.tensors
            ],
        )

    @classmethod
    def decoded(cls, part: SavedPart) -> TensorFile:
        """Return what a message describes."""
        tensors = [
            TensorEntry(
                each.spec,
                part.name,
                each.begin,
                each.version,
                each.rows if each.HasField("rows") else None,
                each.changed if each.HasField("changed") else None,
                each.delta if each.HasField("delta") else None,
            )
            for each in part.tensors
        ]
        digests = part.digests if part.HasField("digests") else None
        return cls(part.name, FileEntry(part.nbytes, tuple(part.blocks), digests), tensors)
