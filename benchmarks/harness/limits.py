"""Memory and disks that the system limits, which takes root on Linux."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


class CannotLimit(Exception):
    """This system lets this process limit nothing; says why."""


@dataclass(frozen=True)
class ControlGroup:
    """Processes whose use of something is limited.

    Attributes:
        folder: Its folder.
    """

    folder: Path

    def joined(self, command: list[str]) -> list[str]:
        """Return a command that is in the group from its start on."""
        script = 'echo $$ > "$0" && exec "$@"'
        return ["/bin/sh", "-c", script, str(self.folder / "cgroup.procs"), *command]

    @property
    def most_memory(self) -> int:
        """The most bytes of memory that it has had, pages of files included."""
        # The first version's name, and the second's.
        for name in ("memory.max_usage_in_bytes", "memory.peak"):
            if (file := self.folder / name).exists():
                return int(file.read_text())
        raise CannotLimit(f"{self.folder} does not tell its memory")


@contextmanager
def memory_of(nbytes: int) -> Iterator[ControlGroup]:
    """Make a group of processes that have so many bytes of memory together.

    Raises:
        CannotLimit: There can be none.
    """
    names = {_GROUPS / "memory": "memory.limit_in_bytes", _GROUPS: "memory.max"}
    with _group(names, str(nbytes)) as group:
        yield group


@contextmanager
def reads_of(device: str, a_second: int) -> Iterator[ControlGroup]:
    """Make a group of processes that a disk gives so many reads a second.

    Args:
        device: The disk, as "major:minor".
        a_second: Reads of it.

    Raises:
        CannotLimit: There can be none.
    """
    (first, of_first) = _GROUPS / "blkio", "blkio.throttle.read_iops_device"
    if first.is_dir():
        with _group({first: of_first}, f"{device} {a_second}") as group:
            yield group
    else:
        with _group({_GROUPS: "io.max"}, f"{device} riops={a_second}") as group:
            yield group


@contextmanager
def _group(names: dict[Path, str], limit: str) -> Iterator[ControlGroup]:
    """Make a group of the first hierarchy that has a file for the limit."""
    for parent, name in names.items():
        try:
            folder = Path(tempfile.mkdtemp(dir=parent, prefix="stratagem-"))
        except OSError as error:
            raise CannotLimit(f"cannot make a control group in {parent}: {error}") from error
        try:
            if (folder / name).exists():
                (folder / name).write_text(limit)
                yield ControlGroup(folder)
                return
        finally:
            folder.rmdir()
    raise CannotLimit(f"no control group of this system has {' or '.join(names.values())}")


@dataclass(frozen=True)
class Disk:
    """A file system of its own on a file.

    Attributes:
        folder: Where it is mounted.
        image: The file.
    """

    folder: Path
    image: Path

    @property
    def device(self) -> str:
        """The number of its device, as "major:minor"."""
        number = os.stat(self.folder).st_dev
        return f"{os.major(number)}:{os.minor(number)}"

    def shrink(self, nbytes: int) -> None:
        """Have reads and writes fail behind the first bytes."""
        os.sync()
        os.truncate(self.image, nbytes)
        major, minor = self.device.split(":")
        loop = Path(f"/sys/dev/block/{major}:{minor}").resolve().name
        subprocess.run(["losetup", "--set-capacity", f"/dev/{loop}"], check=True)


@contextmanager
def disk_of(folder: Path, nbytes: int) -> Iterator[Disk]:
    """Mount a disk of so many bytes in a folder.

    Raises:
        CannotLimit: Nothing can be mounted.
    """
    disk = Disk(folder / "disk", folder / "disk.image")
    disk.folder.mkdir(parents=True)
    with disk.image.open("wb") as image:
        image.truncate(nbytes)
    try:
        for command in (
            ["mkfs.ext4", "-q", "-F", "-m", "0", str(disk.image)],
            ["mount", "-o", "loop", str(disk.image), str(disk.folder)],
        ):
            subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or error
        raise CannotLimit(f"cannot mount a disk on {disk.image}: {said}") from error
    try:
        yield disk
    finally:
        # What a process that is being killed still has open does not keep it.
        subprocess.run(["umount", "-l", str(disk.folder)], check=True)
        disk.image.unlink()
