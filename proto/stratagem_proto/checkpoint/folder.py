"""A folder of checkpoints: the latest one, and older ones until they are removed.

```
run/
├── latest                  the name of the latest checkpoint, and its checksum
└── checkpoint-7/
    ├── index.json          the table of contents, written last
    ├── part-0.safetensors  the tensors of a server, one file for each
    └── local.safetensors   the tensors of the chief
```
"""

from __future__ import annotations

import os
import re
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from stratagem_proto.checkpoint.blocks import (
    BLOCK_BYTES,
    CheckedFile,
    WriteOptions,
    replace_file,
    sync_folder,
    write_file,
)
from stratagem_proto.checkpoint.index import MOST_INDEX_BYTES, Index, TensorEntry, unsigned
from stratagem_proto.checkpoint.parts import read_plain
from stratagem_proto.checkpoint.policy import ANY, CheckpointPolicy
from stratagem_proto.errors import DataLossError, InvalidArgumentError, NotFoundError
from stratagem_proto.open_folders import OpenFolder
from stratagem_proto.wire.tensors import allocate, as_bytes

INDEX = "index.json"
LATEST = "latest"
LOCAL_PART = "local.safetensors"

# It has a name and a checksum.
_MOST_LATEST_BYTES = 4096

_NAME = re.compile(r"\.?checkpoint-(\d+)(\.partial)?")


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a checkpoint in the file system.

    Raises:
        InvalidArgumentError: The path is a URL, or no path.
    """
    if "\0" in os.fspath(path):
        raise InvalidArgumentError(f"{os.fspath(path)!r} is no path; pass one without zeros")
    if _URL.match(os.fspath(path)):
        raise InvalidArgumentError(
            f"{os.fspath(path)!r} is a URL, and checkpoints are only written to and read from "
            "file systems; mount the storage, or save to a folder and copy that"
        )
    return Path(path)


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

    opened: OpenFolder
    index: Index

    @property
    def folder(self) -> Path:
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


def open_checkpoint(path: str | os.PathLike[str], policy: CheckpointPolicy = ANY) -> Checkpoint:
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
    place = local_path(path)
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
    if not folder.has(LATEST):
        raise _no_checkpoint(place)
    return _latest(folder, policy.key)


def _no_checkpoint(path: Path) -> NotFoundError:
    return NotFoundError(
        f"there is no checkpoint {str(path)!r}; pass the path that was given to strategy.save()"
    )


def _only_file(folder: OpenFolder, name: str) -> Checkpoint:
    file, entries = read_plain(folder, name)
    return Checkpoint(folder, Index({name: file}, {entry.name: entry for entry in entries}))


def _latest(root: OpenFolder, key: str) -> Checkpoint:
    text = root.read(LATEST, _MOST_LATEST_BYTES).decode(errors="replace")
    name, _, checksum = text.partition(" ")
    if not (_NAME.fullmatch(name) and root.has(name)):
        raise _names_none(root)
    folder = root.folder(name)
    data = folder.read(INDEX, MOST_INDEX_BYTES) if folder.has(INDEX) else b""
    if checksum != f"{zlib.crc32(data)}\n":
        raise _names_none(root)
    return _read(folder, data, key)


def _names_none(root: OpenFolder) -> DataLossError:
    return DataLossError(
        f"{str(root.path / LATEST)!r} does not name an intact checkpoint; pass the path of "
        "one of the checkpoints in its folder"
    )


def _read(folder: OpenFolder, data: bytes, key: str) -> Checkpoint:
    return Checkpoint(folder, Index.from_bytes(data, str(folder.path / INDEX), key))


class NewCheckpoint:
    """A checkpoint that is being written; readers do not see it before `commit`."""

    def __init__(self, root: str | os.PathLike[str], syncs: bool = True) -> None:
        """Make a folder for the files.

        Args:
            root: The folder of checkpoints; it is made if its parent folder exists.
            syncs: Whether it has to outlive the machine.

        Raises:
            InvalidArgumentError: `root` is a file.
            NotFoundError: The parent folder of `root` does not exist.
        """
        self.root, self._syncs = Path(os.path.abspath(root)), syncs
        _make_root(self.root)
        self._name = f"checkpoint-{_highest(self.root) + 1}"
        self.folder = self.root / f".{self._name}.partial"
        self.folder.mkdir()

    def commit(self, index: Index, keep: int, key: str = "") -> Path:
        """Make this checkpoint the latest, and remove the oldest ones.

        Args:
            index: The table of contents of the files, which are all written.
            keep: The number of checkpoints to keep, this one included.
            key: The key to sign it with; "" for none.

        Returns:
            The folder of the checkpoint.
        """
        data = index.to_bytes(key)
        write_file(self.folder / INDEX, [memoryview(data)], WriteOptions(self._syncs))
        self._sync(self.folder)
        final = self.root / self._name
        os.rename(self.folder, final)
        self._sync(self.root)
        latest = f"{self._name} {zlib.crc32(data)}\n".encode()
        replace_file(self.root / LATEST, latest, self._syncs)
        self._prune(keep)
        return final

    def _sync(self, folder: Path) -> None:
        if self._syncs:
            sync_folder(folder)

    def abandon(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _prune(self, keep: int) -> None:
        own = _number(self._name)
        older = [p for p in self.root.iterdir() if 0 < _number(p.name) < own]
        older.sort(key=lambda path: _number(path.name), reverse=True)
        whole = [path for path in older if not path.name.startswith(".")]
        for path in whole[keep - 1 :]:
            # Renamed first, so that a partly removed one is not taken for a checkpoint.
            os.rename(path, self.root / f".{path.name}.partial")
        for path in self.root.glob(".*.partial"):
            # A later checkpoint may be being written.
            if _number(path.name) < own:
                _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _make_root(root: Path) -> None:
    if root.is_file():
        raise InvalidArgumentError(
            f"the checkpoints of a cluster are a folder, but {str(root)!r} is a file; "
            "pass another path"
        )
    if not root.parent.is_dir():
        raise NotFoundError(
            f"there is no folder {str(root.parent)!r} to save checkpoints in; make it first"
        )
    root.mkdir(exist_ok=True)


def _number(name: str) -> int:
    """Return the number of a checkpoint by the name of its folder; 0 for other names."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else 0


def _highest(root: Path) -> int:
    return max((_number(path.name) for path in root.iterdir()), default=0)
