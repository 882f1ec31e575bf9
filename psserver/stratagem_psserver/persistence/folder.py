"""The folder in which one server keeps its state."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)
from stratagem_proto.v1.replication_pb2 import Replica
from stratagem_storage.checkpoint.index import refused_if_unsound
from stratagem_storage.log import WRITTEN, Tail, first_of, segments_in
from stratagem_storage.open_folders import OpenFolder
from stratagem_storage.stores.local import replace_file, sync_folder

MOUNTS = Path("/proc/self/mountinfo")


def file_system_of(path: Path) -> str:
    """Return the kind of the file system of a folder; "" where the system does not tell."""
    try:
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return ""
    kinds = {}
    for line in lines:
        before, _, after = line.partition(" - ")
        # Spaces in a path, for instance, are written as "\040".
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), before.split()[4])
        kinds[Path(point)] = after.split()[0]
    place = path.resolve()
    return next((kinds[each] for each in (place, *place.parents) if each in kinds), "")


_LOCK = "lock"
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_IMAGES = "images"
_LEFT = "left-in-order"
_REPLICA = "replica"
_MOST_REPLICA_BYTES = 4096

# What these file systems have is gone with the machine, whatever is synced.
VOLATILE = {"tmpfs", "ramfs", "devtmpfs"}


class StateFolder:
    """The folder of one server, which no other process uses meanwhile.

    ```
    ps-0/
    ├── lock              which process uses the folder
    ├── images/           the last image, as a folder of checkpoints
    ├── replica           which replica of the task has the state; of a server with replicas
    ├── left-in-order     whether the image is the state at the end of the process; without a log
    ├── segment-….log     the changes since, in the order of the numbers; with a log
    ├── written           up to which of them the log was on disk
    └── spare-…           files of segments to come, for as long as the process runs
    ```

    Args:
        root: The folder of the folders of all servers, which must exist.
        name: The name of this server's folder, for instance "ps-0".
        label: The server's name, for messages.

    Attributes:
        path: The folder.
    """

    def __init__(self, root: Path, name: str, label: str) -> None:
        if not root.is_dir():
            raise InvalidArgumentError(
                f"there is no folder {str(root)!r} for the state of {label}; make it, on a disk "
                "that stays when the server is replaced"
            )
        if (kind := file_system_of(root)) in VOLATILE:
            raise InvalidArgumentError(
                f"{str(root)!r} is in memory ({kind}), where nothing outlives the machine; choose "
                "a folder on a disk"
            )
        self.path = root / name
        self._lock = self._locked(label)

    def _locked(self, label: str) -> int:
        try:
            self.path.mkdir(exist_ok=True)
            self.images.mkdir(exist_ok=True)
            sync_folder(self.path)
            sync_folder(self.path.parent)
            lock = os.open(self.path / _LOCK, _LOCK_FLAGS, 0o600)
        except OSError as error:
            raise InvalidArgumentError(
                f"the state of {label} cannot be kept in {str(self.path)!r}: {error.strerror}"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(lock, 1000).decode(errors="replace").strip()
            os.close(lock)
            raise FailedPreconditionError(
                f"{holder or 'another process'} uses {str(self.path)!r}; stop it first, or give "
                f"{label} another folder"
            ) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{label}, process {os.getpid()} of {socket.gethostname()}\n".encode(), 0)
        return lock

    @property
    def images(self) -> Path:
        return self.path / _IMAGES

    def sync_image(self) -> None:
        """Bring to disk the files of an image that were only written, with their names."""
        for path in (self.images, *self.images.rglob("*")):
            if path.is_dir():
                sync_folder(path)
            else:
                with path.open("rb") as file:
                    os.fsync(file.fileno())

    def segments(self, needed: int = 1) -> list[Path]:
        """Return the segments that have records from a position on, in their order.

        A loss of power may bring back some of those before, which were removed.
        """
        segments = segments_in(self.path)
        while len(segments) > 1 and first_of(segments[1]) <= needed:
            del segments[0]
        return segments

    def settle(self) -> None:
        """Bring to disk what the process before may have left in memory; or UnavailableError."""
        try:
            for path in self.segments()[-1:]:
                file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    os.fdatasync(file)
                    # After an error of the disk, the system may have in memory what that has not.
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(file)
            sync_folder(self.path)
        except OSError as error:
            raise UnavailableError(
                f"the log in {str(self.path)!r} cannot be brought to disk: {error.strerror}; see "
                "that its disk works"
            ) from error

    def cut(self, tail: Tail) -> None:
        """Remove what is behind the last record, of which nobody has heard."""
        if tail.offset:
            with tail.path.open("r+b") as file:
                file.truncate(tail.offset)
                os.fsync(file.fileno())
        else:
            tail.path.unlink()
        sync_folder(self.path)

    def give_up_before(self, position: int, give_up: Callable[[Path], None]) -> None:
        """Let a function take the names of segments whose records are all before a position."""
        for path, following in pairwise(self.segments()):
            if first_of(following) > position:
                break
            give_up(path)

    @property
    def was_left_in_order(self) -> bool:
        """Whether the image is the state at the end of the process before."""
        return (self.path / _LEFT).exists()

    def leave(self) -> None:
        """Note that the image is the state at the end of this process."""
        (self.path / _LEFT).touch()
        sync_folder(self.path)

    def enter(self) -> None:
        """Note that the state may change from now on."""
        (self.path / _LEFT).unlink(missing_ok=True)
        sync_folder(self.path)

    @property
    def replica(self) -> Replica | None:
        """Whose state it is, of a server with replicas; None before it is complete."""
        try:
            text = OpenFolder.at(self.path).read(_REPLICA, _MOST_REPLICA_BYTES).decode()
        except FileNotFoundError:
            return None
        with refused_if_unsound(str(self.path / _REPLICA)):
            return Replica(instance=bytes.fromhex(text.strip()))

    def belong(self, replica: Replica) -> None:
        """Note that the state is complete, and that of a replica."""
        path = self.path / _REPLICA
        replace_file(path, replica.instance.hex().encode())

    def clear(self) -> None:
        """Remove all state, before that of another server comes."""
        for name in (_REPLICA, WRITTEN):
            (self.path / name).unlink(missing_ok=True)
        sync_folder(self.path)
        for path in self.segments():
            path.unlink()
        shutil.rmtree(self.images)
        self.images.mkdir()
        sync_folder(self.path)

    def release(self) -> None:
        """Let other processes use the folder; a repetition does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
