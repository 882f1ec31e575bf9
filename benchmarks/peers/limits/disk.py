"""A `write` and an `fdatasync` for each push: `... benchmarks.peers.limits.disk FD`.

The bytes are appended to one file, as to a log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.peers.process import Answer, serve
from benchmarks.peers.transfer import Transfers

_FOLDER = Path("runs/benchmarks")


class File:
    """A file that grows; as `Transfer`."""

    def __init__(self, folder: str, nbytes: int) -> None:
        self._data = os.urandom(nbytes)
        self._path = os.path.join(folder, str(nbytes))
        self._file = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
        self._end = 0

    def push(self) -> None:
        """Writes the bytes, and waits until the disk has them."""
        self._end += os.pwrite(self._file, self._data, self._end)
        os.fdatasync(self._file)

    def pull(self) -> None:
        """Reads the bytes that were written first."""
        os.pread(self._file, len(self._data), 0)

    def close(self) -> None:
        """Removes the file."""
        os.close(self._file)
        os.unlink(self._path)


@contextmanager
def contestant() -> Iterator[Answer]:
    """What writes to the disk on which figures are kept."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="disk-", dir=_FOLDER) as folder:
        yield Transfers(partial(File, folder))


if __name__ == "__main__":
    serve(contestant)
