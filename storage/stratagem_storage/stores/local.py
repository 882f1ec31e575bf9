"""The file system as a store of checkpoints: a crash at any byte leaves the one before."""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

from stratagem_proto.errors import DataLossError, InvalidArgumentError, NotFoundError
from stratagem_storage.open_folders import OpenFolder
from stratagem_storage.stores.places import Place
from stratagem_storage.stores.store import BASES, INDEX, LATEST, kept_of, not_below, number_of

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def write_new(
    path: str | Path, data: Iterable[memoryview], syncs: bool, folder: int | None = None
) -> None:
    """Write a new file, and return once it is on disk.

    Args:
        path: The file.
        data: Its bytes in consecutive runs.
        syncs: Whether to wait for the disk; not for a file that need not outlive the machine.
        folder: The descriptor of an open folder, which `path` is then a name in.

    Raises:
        FileExistsError: The file exists.
        OSError: The file cannot be written.
    """
    descriptor = os.open(path, _NEW, 0o644, dir_fd=folder)
    try:
        for run in data:
            _write_all(descriptor, run)
        if syncs:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def replace_file(path: Path, data: bytes, syncs: bool = True) -> None:
    """Replace a small file atomically: readers see all of the old file or all of the new one.

    Args:
        path: The file.
        data: Its new bytes.
        syncs: As of `write_new`.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    write_new(partial, [memoryview(data)], syncs)
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


# It has a name and a checksum.
_MOST_LATEST_BYTES = 4096

_RUN_BYTES = 1 << 20


class LocalFolder(OpenFolder):
    """A folder of the file system, which is open."""

    run_bytes = _RUN_BYTES

    def require_there(self) -> None:
        """Do nothing: only a folder that is there can be open."""

    def latest(self, most_bytes: int) -> tuple[LocalFolder, bytes]:
        """As `Folder.latest`."""
        if not self.has(LATEST):
            raise FileNotFoundError(LATEST)
        text = self.read(LATEST, _MOST_LATEST_BYTES).decode(errors="replace")
        name, _, checksum = text.partition(" ")
        if not (number_of(name) and self.has(name)):
            raise self._names_none()
        folder = self.folder(name)
        data = folder.read(INDEX, most_bytes) if folder.has(INDEX) else b""
        if checksum != f"{zlib.crc32(data)}\n":
            raise self._names_none()
        return folder, data

    def _names_none(self) -> DataLossError:
        return DataLossError(
            f"{str(self.path / LATEST)!r} does not name an intact checkpoint; pass the path of "
            "one of the checkpoints in its folder"
        )

    def write(self, name: str, data: Iterable[memoryview], syncs: bool = True) -> None:
        """As `Folder.write`."""
        write_new(name, data, syncs, self.descriptor)

    def remove(self, name: str) -> None:
        """As `Folder.remove`."""
        Path(self.path / name).unlink(missing_ok=True)


class NewLocalFolder:
    """As `NewFolder`: a folder with a name of its own, which is renamed once all is in it.

    Args:
        root: The folder of checkpoints.
        syncs: Whether the checkpoint has to outlive the machine.

    Attributes:
        folder: Where its files are written.
    """

    def __init__(self, root: Path, syncs: bool) -> None:
        self._root, self._syncs = Path(os.path.abspath(root)), syncs
        _make_root(self._root)
        self._name = f"checkpoint-{_highest(self._root) + 1}"
        self._path = self._root / f".{self._name}.partial"
        self._path.mkdir()
        self.folder = LocalFolder.at(self._path)

    def commit(self, index: bytes, keep: int) -> Path:
        """As `NewFolder.commit`."""
        write_new(self._path / INDEX, [memoryview(index)], self._syncs)
        self._sync(self._path)
        final = self._root / self._name
        os.rename(self._path, final)
        self._sync(self._root)
        replace_file(self._root / LATEST, latest_of(self._name, index), self._syncs)
        self._prune(keep)
        return final

    def _sync(self, folder: Path) -> None:
        if self._syncs:
            sync_folder(folder)

    def abandon(self) -> None:
        """As `NewFolder.abandon`."""
        shutil.rmtree(self._path, ignore_errors=True)

    def _bases(self, name: str) -> list[str]:
        try:
            return (self._root / name / BASES).read_text().split()
        except FileNotFoundError:
            return []

    def _prune(self, keep: int) -> None:
        own = number_of(self._name)
        older = [p for p in self._root.iterdir() if 0 < number_of(p.name) < own]
        older.sort(key=lambda path: number_of(path.name), reverse=True)
        whole = [path.name for path in older if not path.name.startswith(".")]
        kept = kept_of([self._name, *whole], keep, self._bases)
        for name in whole:
            if name not in kept:
                # Renamed first, so that a partly removed one is not taken for a checkpoint.
                os.rename(self._root / name, self._root / f".{name}.partial")
        for path in self._root.glob(".*.partial"):
            # A later checkpoint may be being written.
            if number_of(path.name) < own:
                _remove_whatever(path)


def latest_of(name: str, index: bytes) -> bytes:
    """Return the contents of `latest`.

    Args:
        name: The name of the latest checkpoint.
        index: The bytes of its index.
    """
    return f"{name} {zlib.crc32(index)}\n".encode()


def _remove_whatever(path: Path) -> None:
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


def _highest(root: Path) -> int:
    return max((number_of(path.name) for path in root.iterdir()), default=0)


class LocalStore:
    """The file system."""

    def folder(self, place: Path) -> LocalFolder:
        """As `Store.folder`."""
        return LocalFolder.at(place)

    def folder_below(self, root: Path, place: Place) -> LocalFolder:
        """As `Store.folder_below`."""
        folder, file = self.folder_and_file_below(root, place)
        return folder.folder(file) if file else folder

    def folder_and_file(self, place: Path) -> tuple[LocalFolder, str]:
        """As `Store.folder_and_file`."""
        if place.is_file():
            # Links that somebody has named are followed, as caches of files have them.
            real = place.resolve()
            return LocalFolder.at(real.parent), real.name
        return LocalFolder.at(place), ""

    def folder_and_file_below(self, root: Path, place: Place) -> tuple[LocalFolder, str]:
        """As `Store.folder_and_file_below`."""
        parts = _parts_below(root, place)
        folder = LocalFolder.at(root)
        for number, part in enumerate(parts, 1):
            if number == len(parts) and folder.has_file(part):
                return folder, part
            folder = folder.folder(part)
        return folder, ""

    def is_file(self, place: Path) -> bool:
        """As `Store.is_file`."""
        return place.is_file()

    def place_of_file(self, place: Path) -> tuple[LocalFolder, str]:
        """As `Store.place_of_file`."""
        if place.is_dir():
            raise InvalidArgumentError(
                f"a checkpoint is one file, but {str(place)!r} is a folder; pass for "
                f"instance {str(place / 'model.safetensors')!r}"
            )
        if not place.parent.is_dir():
            raise NotFoundError(
                f"there is no folder {str(place.parent)!r} to save a checkpoint in; make it first"
            )
        return LocalFolder.at(place.parent), place.name

    def replace_file(self, place: Path, write: Callable[[Path], object]) -> None:
        """As `Store.replace_file`."""
        partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
        try:
            write(partial)
            partial.replace(place)
        finally:
            partial.unlink(missing_ok=True)

    def new_folder(self, root: Path, syncs: bool) -> NewLocalFolder:
        """As `Store.new_folder`."""
        return NewLocalFolder(root, syncs)


def _parts_below(root: Path, place: Place) -> tuple[str, ...]:
    for base in (root, root.resolve()):
        if isinstance(place, Path) and place.is_relative_to(base) and ".." not in place.parts:
            return place.relative_to(base).parts
    raise not_below(root, place)
