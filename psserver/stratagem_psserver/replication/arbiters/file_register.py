"""The views of tasks as files of one host."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from stratagem_proto.errors import InvalidArgumentError, UnavailableError
from stratagem_proto.stores.files import sync_folder
from stratagem_proto.v1.replication_pb2 import View
from stratagem_psserver.persistence.file_system import file_system_of
from stratagem_psserver.replication.arbiters.register import Deadline
from stratagem_psserver.replication.arbiters.views import text_of, view_of
from stratagem_psserver.settings import ServerSettings

# Here a lock may exclude the processes of one host only, or it is a matter of mount options.
_SHARED = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs"),
    *("nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs", "virtiofs", "vboxsf", "wekafs"),
}
_FUSE = "fuse"
# A disk of this host, in a format that the kernel does not know.
_LOCAL_FUSE = "fuseblk"

_VOLATILE = {"tmpfs", "ramfs", "devtmpfs"}

_POLL_SECONDS = 0.002


class FileRegister:
    """A file with the view of one task, beside those of the other tasks of its cluster.

    ```
    arbiter/
    ├── ps-0.json       the view
    └── ps-0.lock       which process replaces it; kept, so that all lock the same file
    ```

    A file is replaced as a whole, by one process at a time, and is on disk before anybody acts on
    it: a power failure does not bring back a view that a replica has seen replaced.

    A folder in memory is gone when the machine restarts. If replicas keep nothing on disk, then
    their state is gone as well, and it is right that there is no view. If they keep a log it is
    not: without the view nobody knows which replica had acknowledged the last changes, and an old
    one could begin to serve. So such a folder is refused to replicas that keep something on disk.

    Args:
        address: The folder. It is made if it is missing, but not the folder that it is in.
        settings: Those of a replica of the task.

    Raises:
        InvalidArgumentError: The folder cannot be used, other hosts may use it too, or it is in
            memory and the replicas are on disk.
    """

    def __init__(self, address: str, settings: ServerSettings) -> None:
        if not address:
            raise InvalidArgumentError(
                "--arbiter file: has no folder; give one on a disk of this host, as in "
                "--arbiter file:/var/lib/stratagem/arbiter"
            )
        self._folder = Path(address).absolute()
        name = f"{quote(settings.job, safe='')}-{settings.task}"
        self._path = self._folder / f"{name}.json"
        self._lock = self._folder / f"{name}.lock"
        self.name = f"the arbiter of {settings.label} in {str(self._folder)!r}"
        self._make()
        _require_one_host(self._folder)
        if settings.durability != "none":
            _require_disk(self._folder)

    def _make(self) -> None:
        try:
            self._folder.mkdir(exist_ok=True)
            sync_folder(self._folder.parent)
        except OSError as error:
            raise InvalidArgumentError(
                f"{self.name} cannot be used: {error.strerror}; make the folder that it is in, and "
                "let this user write there"
            ) from error

    def read(self, deadline: Deadline) -> View | None:
        """Return the view that is on disk; None before there was one.

        Raises:
            UnavailableError: The disk fails.
            DataLossError: The file is no view.
        """
        view = self._read()
        with self._disk():
            # The process that has written it may have ended before it was on disk.
            sync_folder(self._folder)
        return view

    def replace(self, present: View | None, following: View, deadline: Deadline) -> bool:
        """Replace the view if it is `present`; return whether it was.

        Raises:
            UnavailableError: Another process does not release the lock, or the disk fails.
            DataLossError: The file is no view.
        """
        with self._locked(deadline):
            if self._read() != present:
                return False
            self._write(following)
            return True

    def close(self) -> None:
        """Do nothing: each call closes what it has opened."""

    def _read(self) -> View | None:
        with self._disk():
            try:
                text = self._path.read_text(encoding="utf-8", errors="replace")
            except FileNotFoundError:
                return None
        return view_of(text, repr(str(self._path)))

    def _write(self, view: View) -> None:
        fresh = self._path.with_suffix(".new")
        with self._disk():
            with fresh.open("w", encoding="utf-8") as file:
                file.write(text_of(view) + "\n")
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
            sync_folder(self._folder)

    @contextmanager
    def _locked(self, deadline: Deadline) -> Iterator[None]:
        with self._disk():
            lock = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._acquire(lock, deadline)
            yield
        finally:
            os.close(lock)

    def _acquire(self, lock: int, deadline: Deadline) -> None:
        # A thread that waits for the lock itself could not be made to stop.
        while not _acquired(lock):
            if deadline.is_over:
                holder = os.pread(lock, 1000, 0).decode(errors="replace").strip()
                raise UnavailableError(
                    f"{self.name} is locked by {holder or 'another process'}, which is suspended "
                    "or has a slow disk; end that process, or let it go on"
                )
            time.sleep(_POLL_SECONDS)
        with self._disk():
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"process {os.getpid()} of {socket.gethostname()}\n".encode(), 0)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UnavailableError(
                f"{self.name} cannot be used: {error.strerror}; see that its disk works and has "
                "room, and that this user may write there"
            ) from error


def _acquired(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _require_one_host(folder: Path) -> None:
    kind = file_system_of(folder)
    if kind in _SHARED or (kind.startswith(_FUSE) and kind != _LOCAL_FUSE):
        raise InvalidArgumentError(
            f"--arbiter file:{folder} is on {kind}, which other hosts may use and where a lock "
            "does not always exclude them. If all replicas are on this host, choose a folder on "
            "its own disk; else use --arbiter kubernetes:NAMESPACE/NAME or etcd:HOST:PORT/PREFIX"
        )


def _require_disk(folder: Path) -> None:
    kind = file_system_of(folder)
    if kind in _VOLATILE:
        raise InvalidArgumentError(
            f"--arbiter file:{folder} is in memory ({kind}), but the replicas keep their state on "
            "disk: after a restart of the machine nobody would know which of them served last. "
            "Choose a folder on a disk"
        )
