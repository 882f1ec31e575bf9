"""What checkpoints need of where they are kept: the seam between them and storage."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from stratagem_proto.errors import PermissionDeniedError
from stratagem_storage.stores.places import Place

INDEX = "index.json"
LATEST = "latest"

BEGUN = "begun"
"""In a store, the object by which a new checkpoint begins."""

BASES = "bases"
"""In a checkpoint that is read beside others, the names of these, one a line."""

_NUMBERED = re.compile(r"\.?checkpoint-(\d+)(\.partial)?")
_NUMBERED_OBJECTS = re.compile(r"checkpoint-(\d+)(-[0-9a-f]+)?")


def number_of(name: str) -> int:
    """Return the number of a checkpoint by the name of its folder; 0 for other names."""
    match = _NUMBERED.fullmatch(name)
    return int(match[1]) if match else 0


def number_of_objects(name: str) -> int:
    """Return the number of a checkpoint in a store; 0 for other names."""
    match = _NUMBERED_OBJECTS.fullmatch(name)
    return int(match[1]) if match else 0


def is_checkpoint(name: str) -> bool:
    """Return whether a name can be that of a checkpoint in a folder or in a store."""
    return not name.startswith(".") and (number_of_objects(name) > 0)


def kept_of(newest: Sequence[str], keep: int, bases: Callable[[str], Collection[str]]) -> set[str]:
    """Return which checkpoints stay.

    Args:
        newest: The names of all, the newest first.
        keep: How many stay whatever they are.
        bases: Returns the names of those that have what a checkpoint lacks.
    """
    kept = set(newest[:keep])
    return kept.union(*map(bases, kept))


PlaceT = TypeVar("PlaceT", bound=Place, contravariant=True)


class OpenedFile(Protocol):
    """A file that can be read from any position."""

    def seek(self, position: int, whence: int = 0, /) -> int:
        """As of files; it returns the new position."""

    def read(self, count: int, /) -> bytes:
        """Return as many bytes, or fewer at the end of the file."""

    def __enter__(self) -> OpenedFile: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> object: ...


def size_of(file: OpenedFile) -> int:
    """Return the bytes of a file, whose position is then its beginning."""
    nbytes = file.seek(0, 2)
    file.seek(0)
    return nbytes


class Folder(Protocol):
    """A folder, whose files are found by plain names in it and nowhere else.

    What is in it may come from somebody hostile: other names are refused, and so is everything that
    is not a file.
    """

    @property
    def path(self) -> Place:
        """Its place."""

    @property
    def run_bytes(self) -> int:
        """How many bytes are best read at a time."""

    def require_there(self) -> None:
        """Check that somebody has made it, if it can be used at all where nobody has.

        Raises:
            FileNotFoundError: Nobody has.
        """

    def folder(self, name: str) -> Folder:
        """Return a folder in it.

        Raises:
            FileNotFoundError: There is none of that name.
            DataLossError: The name leads elsewhere.
        """

    def file(self, name: str) -> OpenedFile:
        """Open a file in it; it raises like `folder`."""

    def read(self, name: str, most_bytes: int) -> bytes:
        """Return the contents of a small file in it; it raises like `folder`.

        Raises:
            DataLossError: The file is larger than it may be.
        """

    def has(self, name: str) -> bool:
        """Return whether it has something of that name, of whatever kind."""

    def latest(self, most_bytes: int) -> tuple[Folder, bytes]:
        """Return the folder of its latest checkpoint, and the bytes of the index there.

        Raises:
            FileNotFoundError: It has no checkpoints.
            DataLossError: The latest is damaged, or its index has more bytes than it may have.
        """

    def write(self, name: str, data: Iterable[memoryview], syncs: bool = True) -> None:
        """Write a new file, and return once it is there for good.

        Args:
            name: Its name.
            data: Its bytes in consecutive runs.
            syncs: Whether it has to outlive the machine.

        Raises:
            FileExistsError: There is one of that name.
            OSError: It cannot be written.
        """

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""


class NewFolder(Protocol):
    """The folder of a new checkpoint; readers do not see the checkpoint before `commit`.

    Attributes:
        folder: Where its files are written.
    """

    @property
    def folder(self) -> Folder:
        """Where its files are written."""

    def commit(self, index: bytes, keep: int) -> Place:
        """Make it the latest checkpoint, and remove the oldest ones.

        Args:
            index: The bytes of the index of its files, which are all written.
            keep: How many checkpoints to keep, this one included.

        Returns:
            Where it is from now on.
        """

    def abandon(self) -> None:
        """Remove what was written of it."""


class Store(Protocol, Generic[PlaceT]):
    """A kind of storage."""

    def folder(self, place: PlaceT) -> Folder:
        """Open the folder at a place that somebody trusted has named, without asking any network.

        Raises:
            OSError: There is none.
        """

    def folder_below(self, root: PlaceT, place: Place) -> Folder:
        """Open the folder at a place that somebody has named who may only use what is below `root`.

        Raises:
            PermissionDeniedError: It is elsewhere.
            DataLossError: It leads elsewhere.
            OSError: There is none.
        """

    def folder_and_file(self, place: PlaceT) -> tuple[Folder, str]:
        """Open the folder, or that of the file, at a place that somebody trusted has named.

        Returns:
            The folder, and ""; or that of a file, and the name of the file.

        Raises:
            OSError: There is neither.
        """

    def folder_and_file_below(self, root: PlaceT, place: Place) -> tuple[Folder, str]:
        """Return the same of a place that may be elsewhere; it raises like `folder_below`."""

    def is_file(self, place: PlaceT) -> bool:
        """Return whether there is a file, and not a folder or nothing."""

    def place_of_file(self, place: PlaceT) -> tuple[Folder, str]:
        """Return the folder and the name of a file that is to be written.

        Raises:
            InvalidArgumentError: It is a folder.
            NotFoundError: There is no folder for it.
        """

    def replace_file(self, place: PlaceT, write: Callable[[Path], object]) -> None:
        """Replace a file as a whole.

        Args:
            place: The file.
            write: Writes it to a path of this machine.
        """

    def new_folder(self, root: PlaceT, syncs: bool) -> NewFolder:
        """Begin a new checkpoint.

        Args:
            root: The folder of checkpoints; it is made if there is what would contain it.
            syncs: Whether it has to outlive the machine.

        Raises:
            InvalidArgumentError: `root` is a file.
            NotFoundError: There is nothing that could contain `root`.
        """


def not_below(root: Place, place: Place) -> PermissionDeniedError:
    """Return the error for a place that is not below the root of checkpoints."""
    return PermissionDeniedError(
        f"{str(place)!r} is not below {str(root)!r}, where alone checkpoints are read and written "
        "here; use a folder there, or start the server with another --checkpoint-root"
    )
