"""A folder of checkpoints: the latest one, and older ones until they are removed.

```
run/
├── latest                  the name of the latest checkpoint, and its checksum
└── checkpoint-7/
    ├── index.json          the table of contents, written last
    ├── part-0.safetensors  the tensors of a server, one file for each
    └── local.safetensors   the tensors of the chief
```

A store of objects has no `latest`: that is the one with the highest number that has an index.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from stratagem_proto.checkpoint.blocks import (
    BLOCK_BYTES,
    CheckedFile,
)
from stratagem_proto.checkpoint.index import MOST_INDEX_BYTES, Index, TensorEntry, unsigned
from stratagem_proto.checkpoint.parts import read_plain
from stratagem_proto.checkpoint.policy import ANY, CheckpointPolicy
from stratagem_proto.errors import DataLossError, NotFoundError
from stratagem_proto.stores.kinds import store_of
from stratagem_proto.stores.names import INDEX
from stratagem_proto.stores.places import AnyPlace, Place, place_of
from stratagem_proto.stores.store import Folder
from stratagem_proto.wire.tensors import allocate, as_bytes

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
    """

    opened: Folder
    index: Index

    @property
    def folder(self) -> Place:
        """The path of the folder with its files."""
        return self.opened.path

    def file(self, name: str) -> CheckedFile:
        """Return one of its files."""
        return CheckedFile(self.opened, name, self.index.files[name])

    def read(self, entry: TensorEntry, start: int, target: memoryview) -> None:
        """Read the bytes of a tensor from `start` on into `target` until that is full.

        Raises:
            DataLossError: The bytes are missing or damaged.
        """
        with _naming(entry):
            self.file(entry.file).read(entry.begin + start, target)

    def require_there(self, entry: TensorEntry) -> None:
        """Check that a file of the right size has a tensor, before memory is taken for the tensor.

        Raises:
            DataLossError: It has not.
        """
        if entry.nbytes > BLOCK_BYTES:
            with _naming(entry):
                self.file(entry.file).require_size()

    def tensor(self, entry: TensorEntry) -> torch.Tensor:
        """Read a stored tensor; it raises like `read`."""
        self.require_there(entry)
        value = allocate(entry.tensor)
        if value.numel():
            self.read(entry, 0, as_bytes(value))
        return value

    def verify(self) -> None:
        """Read and check all files; it raises like `read`."""
        for name in self.index.files:
            self.file(name).verify()


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
        path: A folder of checkpoints, whose latest is opened; one checkpoint in it; or any
            safetensors file.
        policy: What is demanded of it.

    Raises:
        NotFoundError: There is no checkpoint.
        PermissionDeniedError: It is where the policy allows none, or not signed as it demands.
        DataLossError: The checkpoint is damaged.
    """
    place = place_of(path)
    try:
        folder, file = policy.found(place)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _no_checkpoint(place) from error
    if file and policy.key:
        raise unsigned(str(place), "is a file without a signature")
    if file:
        return _only_file(folder, file)
    if folder.has(INDEX):
        return _read(folder, folder.read(INDEX, MOST_INDEX_BYTES), policy.key)
    try:
        latest, data = folder.latest(MOST_INDEX_BYTES)
    except FileNotFoundError as error:
        raise _no_checkpoint(place) from error
    return _read(latest, data, policy.key)


def _no_checkpoint(path: Place) -> NotFoundError:
    return NotFoundError(
        f"there is no checkpoint {str(path)!r}; pass the path that was given to strategy.save()"
    )


def _only_file(folder: Folder, name: str) -> Checkpoint:
    file, entries = read_plain(folder, name)
    return Checkpoint(folder, Index({name: file}, {entry.name: entry for entry in entries}))


def _read(folder: Folder, data: bytes, key: str) -> Checkpoint:
    return Checkpoint(folder, Index.from_bytes(data, str(folder.path / INDEX), key))


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
            keep: The number of checkpoints to keep, this one included.
            key: The key to sign it with; "" for none.

        Returns:
            The folder of the checkpoint.
        """
        return self._new.commit(index.to_bytes(key), keep)

    def abandon(self) -> None:
        """Remove the folder."""
        self._new.abandon()
