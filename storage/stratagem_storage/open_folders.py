"""Folders that are open: their files are found in them by plain names, and nowhere else.

Whoever can write into a folder of checkpoints could lead a reader away by a link, or have it wait
for good by a named pipe. So a file is opened relative to its open folder, without following links
and without waiting, and has to be a regular file.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from pathlib import Path
from typing import BinaryIO

from typing_extensions import Self

from stratagem_proto.errors import DataLossError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

# What the system answers instead of following a link, or instead of opening a socket.
_LEADS_AWAY = {errno.ELOOP, errno.ENOTDIR, errno.ENXIO}


def is_plain_name(name: str) -> bool:
    """Return whether a name is that of an entry of a folder, and no path to somewhere else."""
    return name not in ("", ".", "..") and not {"/", "\0"} & set(name)


class OpenFolder:
    """A folder that is open for as long as somebody uses this object.

    Args:
        path: Its path, for messages.
        descriptor: The descriptor, which this object closes.

    Attributes:
        path: Its path.
        descriptor: The descriptor.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor
        weakref.finalize(self, os.close, descriptor)

    @classmethod
    def at(cls, path: Path) -> Self:
        """Open a folder by a path that somebody trusted has named, links in it included.

        Raises:
            OSError: There is no such folder.
        """
        return cls(path, os.open(path, _FOLDER))

    def folder(self, name: str) -> Self:
        """Open a folder in it.

        Raises:
            FileNotFoundError: There is none of that name.
            DataLossError: The name leads elsewhere, or is not that of a folder.
        """
        descriptor = self._open(name, _FOLDER | os.O_NOFOLLOW, "a folder")
        return type(self)(self.path / name, descriptor)

    def file(self, name: str) -> BinaryIO:
        """Open a file in it.

        Raises:
            FileNotFoundError: There is none of that name.
            DataLossError: The name leads elsewhere, or is not that of a regular file.
        """
        descriptor = self._open(name, _FILE, "a regular file")
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self._refused(name, "a regular file")
        return os.fdopen(descriptor, "rb")

    def read(self, name: str, most_bytes: int) -> bytes:
        """Return the contents of a small file in it; it raises like `file`.

        Raises:
            DataLossError: The file is larger than it may be.
        """
        with self.file(name) as file:
            is_small = os.fstat(file.fileno()).st_size <= most_bytes
            # It may have grown since.
            data = file.read(most_bytes + 1) if is_small else b""
        if not is_small or len(data) > most_bytes:
            raise DataLossError(
                f"{str(self.path / name)!r} is larger than {most_bytes} bytes, the most that "
                "such a file may have; restore an earlier checkpoint"
            )
        return data

    def has(self, name: str) -> bool:
        """Return whether it has an entry of that name, of whatever kind."""
        try:
            self._stat(name)
        except FileNotFoundError:
            return False
        return True

    def has_file(self, name: str) -> bool:
        """Return whether it has a regular file of that name."""
        return self.has(name) and stat.S_ISREG(self._stat(name).st_mode)

    def _stat(self, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)

    def _open(self, name: str, flags: int, wanted: str) -> int:
        if not is_plain_name(name):
            raise self._refused(name, wanted)
        try:
            return os.open(name, flags, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno not in _LEADS_AWAY:
                raise
            raise self._refused(name, wanted) from error

    def _refused(self, name: str, wanted: str) -> DataLossError:
        return DataLossError(
            f"{name!r} in {str(self.path)!r} is not {wanted} of that folder; links and other "
            "special files are not followed. Put the file itself there, or restore an earlier "
            "checkpoint"
        )
