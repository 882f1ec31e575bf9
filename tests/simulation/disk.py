"""The disk of simulated servers: a real folder, of which a loss of power leaves what was synced."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from errno import EIO
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory, gettempdir
from unittest.mock import patch

from stratagem_psserver.log import log
from stratagem_psserver.persistence import folder
from stratagem_storage.log import WRITTEN
from tests.simulation.thread import SimulatedThread
from tests.simulation.world import World

Names = Mapping[str, int]
"""What a folder has: inodes by name."""

# Of work that syncs so often, the last sync does not happen: a batch of a log takes one or two, an
# image six.
_SYNCS = (1, 1, 1, 2, 4, 6)

# What the disk has is decided here, so its files need not reach a real one.
_IN_MEMORY = Path("/dev/shm")

_pwritev, _ftruncate = os.pwritev, os.ftruncate


class Killed(BaseException):
    """The process ends in the midst of its work on the disk."""


class Disk:
    """Files as the system has them in memory, and what of them is on disk.

    Names are on disk once their folder is synced, and bytes once their file is. What is not may be
    there all the same, or not; what one rename did is there as a whole.

    Args:
        world: The run that it is part of.
        root: An empty folder.
    """

    def __init__(self, world: World, root: Path) -> None:
        self._world, self._root = world, root / "disk"
        # Another name of each file that was on disk once, by its inode.
        self._vault = root / "vault"
        self._root.mkdir()
        self._vault.mkdir()
        self._sizes: dict[int, int] = {}
        # What was at places of files before they were written over, since the last sync.
        self._replaced: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self._names: dict[int, Names] = {}
        # Files whose last sync failed: the system takes what it has in memory for synced.
        self._doubtful: set[int] = set()
        # Open folders, by their inodes, which are so kept from being used again.
        self._open: dict[int, int] = {}
        self._syncs_left = 0
        self._leave: Callable[[], None]
        # What becomes of the note of what was written: a chance of its own, so that seeds take the
        # course that they took before there was one.
        self._chance_of_note = Random(f"the note of {world.seed}")

    def close(self) -> None:
        """Give up what the disk has kept."""
        for file in self._open.values():
            os.close(file)

    def machine(self, name: str) -> Path:
        """Return the folder of a server, which is empty at first."""
        path = self._root / name
        path.mkdir(exist_ok=True)
        return path

    def fdatasync(self, file: int) -> None:
        """Do what `os.fdatasync` does."""
        if self._world.strikes("failing disk", self._world.weather.failing_disk):
            self._doubtful.add(os.fstat(file).st_ino)
            raise OSError(EIO, "the simulated disk fails")
        self.fsync(file)

    def fsync(self, file: int) -> None:
        """Do what `os.fsync` does."""
        self._syncs_left -= 1
        if not self._syncs_left:
            self._leave()
            raise Killed
        about, path = os.fstat(file), Path(os.readlink(f"/proc/self/fd/{file}"))
        if path.is_dir():
            self._hold(path, about.st_ino)
            before = self._names[about.st_ino]
            self._names[about.st_ino] = names = self._names_in(path)
            self._release({*before.values()} - {*names.values()})
        elif about.st_ino not in self._doubtful:
            self._keep(path, about.st_ino)
            self._sizes[about.st_ino] = about.st_size
            self._replaced.pop(about.st_ino, None)

    def pwritev(self, file: int, pieces: Sequence[bytes | memoryview], offset: int) -> int:
        """Do what `os.pwritev` does."""
        self._doubtful.discard(os.fstat(file).st_ino)
        self._note_replaced(file, offset, sum(map(len, pieces)))
        return _pwritev(file, pieces, offset)

    def ftruncate(self, file: int, length: int) -> None:
        """Do what `os.ftruncate` does."""
        self._note_replaced(file, length, max(0, os.fstat(file).st_size - length))
        _ftruncate(file, length)

    def _note_replaced(self, file: int, offset: int, nbytes: int) -> None:
        name, inode = f"/proc/self/fd/{file}", os.fstat(file).st_ino
        # So that no other file gets its number.
        self._keep(Path(os.readlink(name)), inode)
        with open(name, "rb") as before:
            before.seek(offset)
            self._replaced[inode].append((offset, before.read(nbytes)))

    def posix_fadvise(self, file: int, *_: int) -> None:
        """Forget what the system has in memory of a file, and the disk has not."""
        inode = os.fstat(file).st_ino
        if inode in self._doubtful:
            self._doubtful.discard(inode)
            name = Path(f"/proc/self/fd/{file}")
            self._bring_back(name, inode, lambda nbytes: (0, nbytes))
            os.truncate(name, self._sizes.get(inode, 0))

    def _bring_back(self, path: Path, inode: int, part: Callable[[int], tuple[int, int]]) -> None:
        """Bring back parts of what was written over since the last sync."""
        with path.open("r+b") as file:
            for offset, before in reversed(self._replaced.pop(inode, ())):
                begin, end = part(len(before))
                if begin < end:
                    file.seek(offset + begin)
                    file.write(before[begin:end])

    def _some(self, nbytes: int) -> tuple[int, int]:
        places = [self._world.chance.choice((0, nbytes // 2, nbytes)) for _ in range(2)]
        return min(places), max(places)

    def _names_in(self, path: Path) -> Names:
        names = {}
        for entry in os.scandir(path):
            if entry.name == WRITTEN:
                continue
            names[entry.name] = entry.inode()
            if entry.is_dir():
                self._hold(Path(entry.path), entry.inode())
            else:
                self._keep(Path(entry.path), entry.inode())
        return names

    def _hold(self, path: Path, inode: int) -> None:
        if inode not in self._names:
            self._names[inode] = {}
            self._open[inode] = os.open(path, os.O_RDONLY)

    def _release(self, gone: Iterable[int]) -> None:
        """Forget folders that are gone for good."""
        for inode in gone:
            if inode in self._open:
                os.close(self._open.pop(inode))
                del self._names[inode]

    def _keep(self, path: Path, inode: int) -> None:
        with suppress(FileExistsError):
            os.link(path, self._vault / str(inode))

    def end(self, path: Path, loses_power: bool, work: Callable[[], None] | None = None) -> None:
        """Let the process end that uses a folder, and leave there what is left.

        Args:
            path: The folder of its machine.
            loses_power: Whether its machine ends, too, so that only that is left which is on disk.
            work: Some work of a thread of the process, in the midst of which it ends.
        """
        left = path.with_name("left")
        self._leave = partial(self._copy, os.stat(path).st_ino, path, left, loses_power)
        if work is not None:
            self._syncs_left = self._world.chance.choice(_SYNCS)
            with suppress(Killed):
                work()
            self._syncs_left = 0
        if not left.exists():
            self._leave()
        shutil.rmtree(path)
        left.rename(path)

    def _copy(self, inode: int, path: Path | None, target: Path, loses_power: bool) -> None:
        """Make a file or folder, which may have been removed, at another place."""
        if inode in self._names or (path is not None and path.is_dir()):
            self._copy_folder(inode, path, target, loses_power)
            return
        kept = self._vault / str(inode)
        os.link(kept if kept.exists() or path is None else path, target)
        if loses_power:
            self._doubtful.discard(inode)
            self._bring_back(target, inode, self._some)
            size = target.stat().st_size
            synced = min(size, self._sizes.get(inode, 0))
            os.truncate(target, self._world.chance.choice((synced, size, (synced + size) // 2)))
            self._keep(target, inode)
            self._sizes[inode] = target.stat().st_size

    def _copy_folder(self, inode: int, path: Path | None, target: Path, loses_power: bool) -> None:
        target.mkdir()
        synced = self._names.get(inode, {})
        present = {} if path is None else {each.name: each.inode() for each in os.scandir(path)}
        if path is not None and present.pop(WRITTEN, 0):
            self._copy_note(path / WRITTEN, target / WRITTEN, loses_power)
        names = self._mixed(synced, present) if loses_power else present
        places = {} if path is None else {child: path / name for name, child in present.items()}
        moved = {}
        for name, child in sorted(names.items()):
            self._copy(child, places.get(child), target / name, loses_power)
            moved[child] = os.stat(target / name).st_ino
        made = os.stat(target).st_ino
        self._hold(target, made)
        left = names if loses_power else synced
        self._names[made] = {name: moved.get(child, child) for name, child in left.items()}

    def _copy_note(self, path: Path, target: Path, loses_power: bool) -> None:
        """Leave the note of what was written, which nobody waits for, or not all of it."""
        content = path.read_bytes()
        kept = self._chance_of_note.choice((0, 1, 2)) if loses_power else 2
        if kept:
            target.write_bytes(content[: len(content) * kept // 2])

    def settle(self, path: Path) -> None:
        """Take what a folder has for what is on disk, whatever was there before."""
        for folder_in, _, files in os.walk(path):
            inode = os.stat(folder_in).st_ino
            self._hold(Path(folder_in), inode)
            self._names[inode] = self._names_in(Path(folder_in))
            for name in files:
                about = os.stat(Path(folder_in, name))
                self._sizes[about.st_ino] = about.st_size
                self._replaced.pop(about.st_ino, None)
                self._doubtful.discard(about.st_ino)

    def _mixed(self, synced: Names, present: Names) -> Names:
        """Return some of what is on disk only by chance, where a rename is whole or not at all."""
        groups = {name: {name} for name in (*synced, *present)}
        earlier = {inode: name for name, inode in synced.items()}
        for name, inode in present.items():
            joined = groups[name] | groups[earlier.get(inode, name)]
            groups.update(dict.fromkeys(joined, joined))
        mixed = {}
        for group in sorted({tuple(sorted(group)) for group in groups.values()}):
            names = self._world.chance.choice((synced, present))
            mixed.update({name: names[name] for name in group if name in names})
        return mixed


@contextmanager
def simulated_disk(world: World) -> Iterator[Disk]:
    """Give servers a disk for their logs, for as long as the context lasts."""
    place = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else gettempdir()
    with TemporaryDirectory(prefix="simulation", dir=place) as root:
        made = Disk(world, Path(root))
        with (
            patch.object(os, "fsync", made.fsync),
            patch.object(os, "fdatasync", made.fdatasync),
            patch.object(os, "pwritev", made.pwritev),
            patch.object(os, "ftruncate", made.ftruncate),
            patch.object(os, "posix_fadvise", made.posix_fadvise),
            patch.object(folder, "VOLATILE", frozenset()),
            patch.object(log, "DiskThread", SimulatedThread),
            closing(made),
        ):
            yield made
