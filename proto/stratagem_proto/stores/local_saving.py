"""Writing checkpoints to the file system: a crash at any byte leaves the one before."""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path

from stratagem_proto.errors import InvalidArgumentError, NotFoundError
from stratagem_proto.stores.files import replace_file, sync_folder, write_new
from stratagem_proto.stores.local import LocalFolder
from stratagem_proto.stores.names import BASES, INDEX, LATEST, number_of
from stratagem_proto.stores.retention import kept_of


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
                _remove(path)


def latest_of(name: str, index: bytes) -> bytes:
    """Return the contents of `latest`.

    Args:
        name: The name of the latest checkpoint.
        index: The bytes of its index.
    """
    return f"{name} {zlib.crc32(index)}\n".encode()


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


def _highest(root: Path) -> int:
    return max((number_of(path.name) for path in root.iterdir()), default=0)
