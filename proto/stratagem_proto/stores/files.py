"""Writing files of the file system so that they outlive the machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

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
