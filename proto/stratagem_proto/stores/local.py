"""Folders of the file system that have checkpoints."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path

from stratagem_proto.errors import DataLossError
from stratagem_proto.open_folders import OpenFolder
from stratagem_proto.stores.files import write_new
from stratagem_proto.stores.names import INDEX, LATEST, number_of

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
