"""Records of the runs on this machine, by which other commands find them.

A record is a file in a folder of the user alone. Whoever wrote it holds a lock on it, which the
kernel gives up with the process: so a record without one is of the dead, even where another process
has their id by now.

The folder is in the directory for temporary files and not in `XDG_RUNTIME_DIR`, which shells of
`su`, `sudo` and `cron` do not have, and which is emptied when its user logs out, though what
`nohup` started goes on.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict, ValidationError

from stratagem_proto.errors import PermissionDeniedError, StratagemError


class RunRecord(BaseModel):
    """A script that runs on a cluster of this machine.

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
        if _is_locked(file):
            return RunRecord.model_validate_json(file.read())
        path.unlink()
    return None


def _is_locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _folder() -> Path:
    """Return the folder of records, which exists.

    Raises:
        PermissionDeniedError: Others may write there, and could lead us to servers of theirs.
    """
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
