"""What a cluster has of this machine while it lasts: addresses, a directory, and a record."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from stratagem_deploy.processes import sweeper
from stratagem_proto.errors import PermissionDeniedError, StratagemError

_LOOPBACK = "127.0.0.1"


class ReservedAddress(AbstractContextManager["ReservedAddress"]):
    """A free address, kept from everybody else until it is closed, as by a block.

    A socket is bound to it and never listens, so the one server that this address is meant for can
    still bind it, and bind it again after a restart, while the kernel gives it neither to another
    server nor to an outgoing connection.
    """

    def __init__(self, host: str = _LOOPBACK) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, 0))
        self._text = "{}:{}".format(*self._socket.getsockname())

    def __str__(self) -> str:
        return self._text

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()


class ReservedAddresses(AbstractContextManager["ReservedAddresses"]):
    """The free addresses of the replicas of one task, kept until they are closed.

    Attributes:
        replicas: The address of each; of most tasks one.
    """

    def __init__(self, count: int = 1) -> None:
        with ExitStack() as stack:
            reserved = [stack.enter_context(ReservedAddress()) for _ in range(count)]
            self._closing = stack.pop_all()
        self.replicas: Sequence[str] = [str(each) for each in reserved]

    def __str__(self) -> str:
        return ",".join(self.replicas)

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        self._closing.close()


class PrivateDirectory:
    """A temporary directory of mode 0700, removed even if this process is killed.

    Attributes:
        path: Where it is.
    """

    def __init__(self) -> None:
        self._sweeper = subprocess.Popen(
            [sys.executable, "-I", "-S", sweeper.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # Ctrl-C at the terminal must not end it before the others.
            start_new_session=True,
        )
        assert self._sweeper.stdout
        self.path = Path(self._sweeper.stdout.readline().rstrip("\n"))

    def write_secret(self, name: str, secret: str) -> Path:
        """Write a file of mode 0600."""
        path = self.path / name
        path.touch(mode=0o600)
        path.write_text(secret, encoding="utf-8")
        return path

    def close(self) -> None:
        """Remove the directory with everything in it; harmless when repeated."""
        if self._sweeper.poll() is None:
            self._sweeper.communicate()


class RunRecord(BaseModel):
    """A script that runs on a cluster of this machine, by which other commands find it.

    A record is a file in a folder of the user alone. Whoever wrote it holds a lock on it, which the
    kernel gives up with the process: so a record without one is of the dead, even where another
    process has their id by now.

    Attributes:
        pid: The process that started it all.
        script: Path of the script, as it was given.
        cluster: Addresses of the tasks by job, as in TF_CONFIG.
        token_file: File with the cluster's secret.
        tls: Folder with the certificates of those who ask the servers; None if there are none.
        additions: Socket at which one more server is asked for; None if tasks cannot move.
    """

    model_config = ConfigDict(frozen=True)

    pid: int
    script: str
    cluster: dict[str, list[str]]
    token_file: Path
    tls: Path | None = None
    additions: Path | None = None

    @property
    def credentials(self) -> dict[str, str]:
        """The settings by which other commands reach the servers, by name."""
        certificates = {} if self.tls is None else {"tls": str(self.tls)}
        return {"token_file": str(self.token_file), **certificates}


@contextmanager
def on_record(record: RunRecord) -> Iterator[None]:
    """Keep a record as long as the block lasts, and this process.

    Where that is not possible, the block runs all the same: `records` says why.
    """
    with ExitStack() as resources:
        with suppress(OSError, StratagemError):
            _write(record, resources)
        yield


def records() -> list[RunRecord]:
    """Return the runs of this user, in the order of the process ids.

    Raises:
        PermissionDeniedError: The folder of records belongs to somebody else too.
    """
    found = map(_read, _folder().glob("*.json"))
    return sorted((one for one in found if one), key=lambda record: record.pid)


def _write(record: RunRecord, resources: ExitStack) -> None:
    folder = _folder()
    descriptor, unfinished = tempfile.mkstemp(dir=folder)
    resources.callback(os.close, descriptor)
    # Locked before it has its name: nobody sees a record without a lock.
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    path = Path(unfinished)
    resources.callback(path.unlink, missing_ok=True)
    path.write_text(record.model_dump_json(), encoding="utf-8")
    path = path.rename(folder / f"{record.pid}.json")
    resources.callback(path.unlink, missing_ok=True)


def _read(path: Path) -> RunRecord | None:
    """Read a record; remove it if its process has ended."""
    with suppress(FileNotFoundError, ValidationError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return RunRecord.model_validate_json(file.read())
        path.unlink()
    return None


def _folder() -> Path:
    """Return the folder of records, which exists.

    Raises:
        PermissionDeniedError: Others may write there, and could lead us to servers of theirs.
    """
    # Not in `XDG_RUNTIME_DIR`, which shells of `su`, `sudo` and `cron` do not have, and which is
    # emptied when its user logs out, though what `nohup` started goes on.
    folder = Path(tempfile.gettempdir(), f"stratagem-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_ours or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionDeniedError(
            f"{folder} is no folder of this user alone, so what runs on this machine "
            "is not looked up there: remove it, or set TMPDIR to another directory"
        )
    return folder
