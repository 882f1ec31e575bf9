"""One checkpoint: who may have written it, its files, and writing a new one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch

from stratagem_proto.errors import DataLossError, NotFoundError
from stratagem_proto.wire.tensors import allocate, as_bytes
from stratagem_storage.checkpoint.deltas import PatchedTensor, Read
from stratagem_storage.checkpoint.entries import (
    BLOCK_BYTES,
    NUMBER_BYTES,
    CheckedFile,
    TensorEntry,
    are_alike,
    row_count,
    row_nbytes,
)
from stratagem_storage.checkpoint.index import MOST_INDEX_BYTES, Base, Index, unsigned_error
from stratagem_storage.checkpoint.parts import Content, read_plain
from stratagem_storage.checkpoint.plain import SHARD_LIST, read_shards
from stratagem_storage.checkpoint.policy import ANY, CheckpointPolicy
from stratagem_storage.stores import store_of
from stratagem_storage.stores.places import AnyPlace, Place, absolute_place, place_of
from stratagem_storage.stores.store import BASES, INDEX, Folder


class Overlay:
    """A tensor that is put together of the rows of a file and of those of a base.

    Args:
        file: The file with the rows that differ.
        entry: The place of these rows.
        base: The place of the tensor in the base.
        read_base: Reads that tensor.

    Raises:
        DataLossError: The numbers of the rows are missing or damaged, or cannot be.
    """

    def __init__(
        self, file: CheckedFile, entry: TensorEntry, base: TensorEntry, read_base: Read
    ) -> None:
        self._file, self._begin = file, entry.begin
        self._row_nbytes, self._read_base = row_nbytes(entry.tensor), read_base
        self._base_rows = row_count(base.tensor)
        self._numbers = _numbers(file, entry)
        _require_possible(self._numbers, row_count(entry.tensor), self._base_rows, file)

    def read(self, start: int, target: memoryview) -> None:
        """Read the bytes from `start` on into `target` until that is full.

        Raises:
            DataLossError: The bytes are missing or damaged.
        """
        size = self._row_nbytes
        first, last = start // size, -(-(start + len(target)) // size)
        if len(target) == (last - first) * size:
            self._read_rows(first, last, target)
            return
        rows = memoryview(bytearray((last - first) * size))
        self._read_rows(first, last, rows)
        target[:] = rows[start - first * size :][: len(target)]

    def _read_rows(self, first: int, last: int, target: memoryview) -> None:
        size, ends = self._row_nbytes, torch.tensor([first, last])
        low, high = torch.searchsorted(self._numbers, ends).tolist()
        kept = min(last, self._base_rows)
        if first < kept and high - low < last - first:
            self._read_base(first * size, target[: (kept - first) * size])
        if low < high:
            rows = torch.empty(high - low, size, dtype=torch.uint8)
            self._file.read(self._begin + low * size, as_bytes(rows))
            into = torch.frombuffer(target, dtype=torch.uint8).view(-1, size)
            into[self._numbers[low:high] - first] = rows


def _numbers(file: CheckedFile, entry: TensorEntry) -> torch.Tensor:
    """Return the numbers of the rows that differ."""
    assert entry.changed is not None
    file.require_size()
    numbers = torch.empty(entry.changed.count, dtype=torch.int64)
    if len(numbers):
        file.read(entry.changed.begin, as_bytes(numbers))
    return numbers


def _require_possible(numbers: torch.Tensor, rows: int, base_rows: int, file: CheckedFile) -> None:
    """Check that each row is in the file or in the base, and none is anywhere else."""
    ends = numbers[:1].tolist(), numbers[-1:].tolist()
    is_within = not len(numbers) or (ends[0][0] >= 0 and ends[1][0] < rows)
    ascends = bool((numbers.diff() > 0).all())
    beyond = len(numbers) - int(torch.searchsorted(numbers, base_rows))
    if not (is_within and ascends and beyond == max(0, rows - base_rows)):
        raise DataLossError(
            f"{str(file.folder.path / file.name)!r} does not have the rows that its checkpoint "
            "lacks in its base; restore an earlier checkpoint"
        )


# ``` run/ ├── latest                  the name of the latest checkpoint, and its checksum └──
# checkpoint-7/     ├── index.json          the table of contents, written last     ├──
# part-0.safetensors  the tensors of a server, one file for each     ├── local.safetensors   the
# tensors of the chief     └── bases               of an incremental one: the checkpoints that have
# what it lacks ```
#
# A store of objects has no `latest`: that is the one with the highest number that has an index.

# A reader that goes from one array of a table to the next, and back, finds each again.
_MOST_OVERLAYS = 16

LOCAL_PART = "local.safetensors"


def part_name(server: int) -> str:
    """Return the name of the file that a server writes."""
    return f"part-{server}.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint that can be read.

    Attributes:
        opened: The folder with its files, which is open.
        index: Its table of contents.
        base: The checkpoint that has the rows which this one lacks, if it lacks any.
    """

    opened: Folder
    index: Index
    base: Checkpoint | None = None
    _overlays: dict[str, Overlay | PatchedTensor] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def folder(self) -> Place:
        """The path of the folder with its files."""
        return self.opened.path

    @property
    def as_base(self) -> Base:
        """How the index of a checkpoint that is read beside this one names it."""
        return Base(self.index.identity, (self.folder.name, *self.index.bases))

    def file(self, name: str) -> CheckedFile:
        """Return one of its files."""
        return CheckedFile(self.opened, name, self.index.files[name])

    def read(self, entry: TensorEntry, start: int, target: memoryview) -> None:
        """Read the bytes of a tensor from `start` on into `target` until that is full.

        Raises:
            DataLossError: The bytes are missing or damaged.
        """
        with _naming(entry):
            if not entry.needs_base:
                self.file(entry.file).read(entry.begin + start, target)
            else:
                self._overlay(entry).read(start, target)

    def _overlay(self, entry: TensorEntry) -> Overlay | PatchedTensor:
        overlay = self._overlays.get(entry.name)
        if overlay is None:
            assert self.base is not None
            below = self.base.index.tensors[entry.name]
            read, file = partial(self.base.read, below), self.file(entry.file)
            if entry.delta is None:
                overlay = Overlay(file, entry, below, read)
            else:

                def read_delta(begin: int, target: memoryview) -> None:
                    file.read(entry.begin + begin, target)

                where = str(self.folder / entry.file)
                overlay = PatchedTensor(entry.tensor, entry.delta, read_delta, read, where)
            if len(self._overlays) >= _MOST_OVERLAYS:
                self._overlays.clear()
            self._overlays[entry.name] = overlay
        return overlay

    def require_there(self, entry: TensorEntry) -> None:
        """Check that a file of the right size has a tensor, before memory is taken for the tensor.

        Raises:
            DataLossError: It has not.
        """
        if entry.nbytes > BLOCK_BYTES:
            with _naming(entry):
                self.file(entry.file).require_size()
        if entry.needs_base:
            assert self.base is not None
            self.base.require_there(self.base.index.tensors[entry.name])

    def tensor(self, entry: TensorEntry) -> torch.Tensor:
        """Read a stored tensor; it raises like `read`."""
        self.require_there(entry)
        value = allocate(entry.tensor)
        if value.numel():
            self.read(entry, 0, as_bytes(value))
        return value

    def verify(self) -> None:
        """Read and check all files, those of the base included; it raises like `read`."""
        for name in self.index.files:
            self.file(name).verify()
        if self.base is not None:
            self.base.verify()


@contextmanager
def _naming(entry: TensorEntry) -> Iterator[None]:
    """Say in errors which variable it was."""
    try:
        yield
    except DataLossError as error:
        raise DataLossError(
            f"{error.message} (variable {entry.name!r})", variable=entry.name
        ) from error


def open_checkpoint(path: AnyPlace, policy: CheckpointPolicy = ANY) -> Checkpoint:
    """Return the checkpoint at a path.

    Args:
        path: A folder of checkpoints, whose latest is opened; one checkpoint in it; any safetensors
            file, or a folder of shards and their list.
        policy: What is demanded of it.

    Raises:
        NotFoundError: There is no checkpoint.
        PermissionDeniedError: It is where the policy allows none, or not signed as it demands.
        DataLossError: The checkpoint is damaged.
    """
    place = place_of(path)
    try:
        folder, file = policy.folder_and_file(place)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _no_checkpoint(place) from error
    if file and policy.key:
        raise unsigned_error(str(place), "is a file without a signature")
    if file:
        return _only_file(folder, file)
    if folder.has(INDEX):
        return _read(folder, folder.read(INDEX, MOST_INDEX_BYTES), policy)
    if folder.has(SHARD_LIST):
        if policy.key:
            raise unsigned_error(str(place), "is a folder of shards without a signature")
        return Checkpoint(folder, read_shards(folder))
    try:
        latest, data = folder.latest(MOST_INDEX_BYTES)
    except FileNotFoundError as error:
        raise _no_checkpoint(place) from error
    return _read(latest, data, policy)


def _no_checkpoint(path: Place) -> NotFoundError:
    return NotFoundError(
        f"there is no checkpoint {str(path)!r}; pass the path that was given to strategy.save()"
    )


def _only_file(folder: Folder, name: str) -> Checkpoint:
    file, entries = read_plain(folder, name)
    return Checkpoint(folder, Index({name: file}, {entry.name: entry for entry in entries}))


def _read(folder: Folder, data: bytes, policy: CheckpointPolicy) -> Checkpoint:
    index = Index.from_bytes(data, str(folder.path / INDEX), policy.key)
    base = None if index.base is None else _opened_base(folder.path, index, index.base, policy)
    return Checkpoint(folder, index, base)


def _opened_base(path: Place, index: Index, base: Base, policy: CheckpointPolicy) -> Checkpoint:
    place = absolute_place(path).parent / base.names[0]
    try:
        found = open_checkpoint(place, policy)
    except NotFoundError as error:
        raise DataLossError(
            f"{str(path)!r} has only what differs from {str(place)!r}, which is not there; restore "
            "another checkpoint. Whoever copies one of them has to copy both"
        ) from error
    # Each has fewer bases than the one before, so that this comes to an end.
    is_it = (found.index.identity, found.index.bases) == (base.identity, base.names[1:])
    if not (is_it and _has_all(found.index, index)):
        raise DataLossError(
            f"{str(path)!r} has only what differs from a checkpoint that {str(place)!r} no longer "
            "is; restore another one"
        )
    return found


def _has_all(base: Index, index: Index) -> bool:
    """Return whether a base has the rows that a checkpoint lacks."""
    lacking = [entry for entry in index.tensors.values() if entry.needs_base]
    below = [base.tensors.get(entry.name) for entry in lacking]
    return all(
        one is not None
        and are_alike(one.tensor, entry.tensor)
        and (entry.delta is None or one.tensor == entry.tensor)
        for one, entry in zip(below, lacking, strict=True)
    )


class NewCheckpoint:
    """A checkpoint that is being written; readers do not see it before `commit`."""

    def __init__(self, root: AnyPlace, syncs: bool = True) -> None:
        """Make a folder for the files.

        Args:
            root: The folder of checkpoints; it is made if its parent folder exists.
            syncs: Whether it has to outlive the machine.

        Raises:
            InvalidArgumentError: `root` is a file.
            NotFoundError: The parent folder of `root`, or the bucket, does not exist.
        """
        place = place_of(root)
        self._new = store_of(place).new_folder(place, syncs)
        self.folder: Folder = self._new.folder

    def commit(self, index: Index, keep: int, key: str = "") -> Place:
        """Make this checkpoint the latest, and remove the oldest ones.

        Args:
            index: The table of contents of the files, which are all written.
            keep: The number of checkpoints to keep, this one included. What these are read beside
                is kept as well.
            key: The key to sign it with; "" for none.

        Returns:
            The folder of the checkpoint.
        """
        if index.bases:
            names = "".join(f"{name}\n" for name in index.bases)
            self.folder.write(BASES, [memoryview(names.encode())])
        return self._new.commit(index.to_bytes(key), keep)

    def abandon(self) -> None:
        """Remove the folder."""
        self._new.abandon()


def require_room(root: AnyPlace) -> None:
    """Check that a folder takes checkpoints, by beginning one; raise as `NewCheckpoint` does."""
    NewCheckpoint(root, syncs=False).abandon()


_RUN_BYTES = 4 << 20

_WORDS = torch.int64, torch.int32, torch.int16, torch.uint8


def changed_rows(
    content: Content, runs: Iterable[torch.Tensor], base: Checkpoint
) -> torch.Tensor | None:
    """Return the numbers of the rows that have to be written beside an earlier checkpoint.

    Bytes are compared, so that it does not matter who changed them, how often, or in which run of
    the program. A row of a table is compared with the one that has had its position.

    Args:
        content: What is to be written.
        runs: Its rows in their order, some at a time.
        base: The earlier checkpoint.

    Returns:
        int64, ascending; None to write all rows, as these take no more.

    Raises:
        DataLossError: Bytes of the earlier checkpoint are missing or damaged.
    """
    entry, tensor = base.index.tensors.get(content.spec.name), content.tensor
    if entry is None or not are_alike(entry.tensor, tensor):
        return None
    if tensor.shape and not row_nbytes(tensor):
        return None
    size, rows = row_nbytes(tensor), row_count(tensor)
    most, at_once = size * rows // (size + NUMBER_BYTES), max(1, _RUN_BYTES // size)
    found, count, first = [torch.empty(0, dtype=torch.int64)], 0, 0
    for run in runs:
        if not run.numel():
            continue
        for part in (
            torch.frombuffer(as_bytes(run), dtype=torch.uint8).view(-1, size).split(at_once)
        ):
            found.append(first + _differing(part, base, entry, first))
            count, first = count + len(found[-1]), first + len(part)
            if count >= most and count:
                return None
    return torch.cat(found)


def _differing(run: torch.Tensor, base: Checkpoint, entry: TensorEntry, first: int) -> torch.Tensor:
    """Return which of some rows, the first of which has a number, are not in the base."""
    size = run.shape[1]
    known = max(0, min(len(run), row_count(entry.tensor) - first))
    before = torch.empty(known, size, dtype=torch.uint8)
    if known:
        base.read(entry, first * size, as_bytes(before))
    differs = torch.ones(len(run), dtype=torch.bool)
    differs[:known] = (_words(run[:known]) != _words(before)).any(1)
    return differs.nonzero().squeeze(1)


def _words(rows: torch.Tensor) -> torch.Tensor:
    """Return the bytes of rows as the widest words that fit: these are compared the fastest."""
    size = rows.shape[1]
    return rows.view(next(word for word in _WORDS if not size % word.itemsize))
