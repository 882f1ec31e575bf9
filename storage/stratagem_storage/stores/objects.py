"""Stores of objects as stores of checkpoints: one exists once its index does."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from stratagem_proto.errors import (
    AbortedError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    StoreError,
    StratagemError,
)
from stratagem_storage.open_folders import is_plain_name
from stratagem_storage.stores.object_calls import LOG, ObjectCalls
from stratagem_storage.stores.places import Place, StoreUrl
from stratagem_storage.stores.store import (
    BASES,
    BEGUN,
    INDEX,
    kept_of,
    not_below,
    number_of_objects,
)

_RUN_BYTES = 16 << 20

# Small tensors often follow each other: what comes next is fetched with the first of them.
_LEAST_FETCH_BYTES = 4 << 20


class _Content:
    """The bytes of an object, of which the last fetch is kept.

    Args:
        calls: The calls of the store.
        url: The object.
        nbytes: Its size.
    """

    def __init__(self, calls: ObjectCalls, url: StoreUrl, nbytes: int) -> None:
        self._calls, self._url, self.nbytes = calls, url, nbytes
        self._kept = (0, b"")

    def between(self, begin: int, end: int) -> bytes:
        """Return some of the bytes."""
        end = min(end, self.nbytes)
        if begin >= end:
            return b""
        # Threads that read at a time replace it as a whole.
        start, kept = self._kept
        if not start <= begin <= end <= start + len(kept):
            stop = min(self.nbytes, max(end, begin + _LEAST_FETCH_BYTES))
            start, kept = begin, self._calls.read(self._url, begin, stop)
            self._kept = start, kept
        return kept[begin - start : end - start]


class ObjectFile:
    """An object that can be read from any position.

    Args:
        content: Its bytes.
    """

    def __init__(self, content: _Content) -> None:
        self._content, self._position = content, 0

    def seek(self, position: int, whence: int = 0) -> int:
        """As of files."""
        ends = {0: 0, 1: self._position, 2: self._content.nbytes}
        self._position = ends[whence] + position
        return self._position

    def read(self, count: int) -> bytes:
        """As of files."""
        data = self._content.between(self._position, self._position + count)
        self._position += len(data)
        return data

    def __enter__(self) -> ObjectFile:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class ObjectFolder:
    """The objects of a store whose names begin alike.

    Args:
        path: What they begin with.

    Attributes:
        path: What they begin with.
    """

    run_bytes = _RUN_BYTES

    def __init__(self, path: StoreUrl) -> None:
        self.path, self.calls = path, ObjectCalls(path.scheme)
        self._contents: dict[str, _Content] = {}

    def require_there(self) -> None:
        """As `Folder.require_there`: objects can be put anywhere, so a checkpoint begins with one.

        Raises:
            FileNotFoundError: It does not.
        """
        if not self.has(BEGUN):
            raise FileNotFoundError(2, "nobody has begun a checkpoint there", str(self.path))

    def folder(self, name: str) -> ObjectFolder:
        """As `Folder.folder`; whether objects are in it is not known before they are asked for."""
        return ObjectFolder(self._url(name, "a folder"))

    def file(self, name: str) -> ObjectFile:
        """As `Folder.file`; all that this object opens are as large as they were at first."""
        if name not in self._contents:
            url = self._url(name, "a file")
            nbytes = self.calls.size(url)
            if nbytes is None:
                raise FileNotFoundError(2, "there is no such object", str(url))
            self._contents[name] = _Content(self.calls, url, nbytes)
        return ObjectFile(self._contents[name])

    def read(self, name: str, most_bytes: int) -> bytes:
        """As `Folder.read`."""
        url = self._url(name, "a file")
        nbytes = self.calls.size(url)
        if nbytes is None:
            raise FileNotFoundError(2, "there is no such object", str(url))
        # It may have been replaced since. S3 reads no range of an object without bytes.
        is_read = 0 < nbytes <= most_bytes
        data = self.calls.read(url, 0, most_bytes + 1) if is_read else b""
        if nbytes > most_bytes or len(data) > most_bytes:
            raise DataLossError(
                f"{str(url)!r} is larger than {most_bytes} bytes, the most that such a file may "
                "have; restore an earlier checkpoint"
            )
        return data

    def has(self, name: str) -> bool:
        """As `Folder.has`, of objects alone."""
        return self.calls.size(self._url(name, "a file")) is not None

    def latest(self, most_bytes: int) -> tuple[ObjectFolder, bytes]:
        """As `Folder.latest`: the one with the highest number among those that have an index."""
        for name in self.checkpoints():
            folder = self.folder(name)
            if folder.is_whole():
                return folder, folder.read(INDEX, most_bytes)
        raise FileNotFoundError(2, "there are no checkpoints", str(self.path))

    def checkpoints(self) -> list[str]:
        """Return the names of all checkpoints in it, whole or not, the newest first."""
        names = {name for name, _ in self.calls.list_names(self.path) if number_of_objects(name)}
        return sorted(names, key=lambda name: (number_of_objects(name), name), reverse=True)

    def is_whole(self) -> bool:
        """Return whether it is a checkpoint: an index without bytes says that none may come."""
        return bool(self.calls.size(self.path / INDEX))

    def write(self, name: str, data: Iterable[memoryview], syncs: bool = True) -> None:
        """As `Folder.write`; what a store has acknowledged outlives machines anyway."""
        self.calls.upload(self._url(name, "a file"), data, replaces=False)

    def remove(self, name: str) -> None:
        """As `Folder.remove`."""
        self.calls.remove([self._url(name, "a file")])

    def _url(self, name: str, wanted: str) -> StoreUrl:
        if not is_plain_name(name):
            raise DataLossError(
                f"{name!r} in {str(self.path)!r} is not the name of {wanted} there; restore an "
                "earlier checkpoint"
            )
        return self.path / name


# A store has no renaming, so each attempt has a folder of its own, whose name is used only once.
# Its index is put last, by one request on the condition that there is none. Whoever removes an
# attempt puts an empty index first, on the same condition. So either the checkpoint is whole, or
# no index of it can appear any more, whatever requests are still under way.

_NAME_BYTES = 4

# The empty index of an attempt stays for so long, in which a program that was held up may go on.
_SEAL_SECONDS = 86400.0

_ATTEMPTS = 3

_MOST_BASES_BYTES = 1 << 16


class NewObjectFolder:
    """As `NewFolder`.

    Args:
        root: The folder of checkpoints.

    Raises:
        InvalidArgumentError: `root` is an object.
        NotFoundError: There is no such bucket.
        FailedPreconditionError: The store does not look at conditions.

    Attributes:
        folder: Where its files are written.
    """

    def __init__(self, root: ObjectFolder) -> None:
        self._root, self._calls = root, root.calls
        if len(root.path.segments) > 1 and self._calls.size(root.path) is not None:
            raise InvalidArgumentError(
                f"the checkpoints of a cluster are a folder, but {str(root.path)!r} is an object; "
                "pass another URL"
            )
        number = max(map(number_of_objects, root.checkpoints()), default=0) + 1
        self._name = f"checkpoint-{number}-{secrets.token_hex(_NAME_BYTES)}"
        self.folder = root.folder(self._name)
        self._is_ending = False
        self._begin()

    def _begin(self) -> None:
        begun = self.folder.path / BEGUN
        self._calls.create(begun, b"\n")
        try:
            self._calls.create(begun, b"\n")
        except FileExistsError:
            return
        self.abandon()
        raise FailedPreconditionError(
            f"the store of {str(self._root.path)!r} replaces objects on the condition that there "
            "are none (If-None-Match), by which one of two programs would damage what the other "
            "has saved; use a release of it that looks at conditions, or another store"
        )

    def commit(self, index: bytes, keep: int) -> StoreUrl:
        """As `NewFolder.commit`.

        Raises:
            AbortedError: Another program has saved meanwhile, and given this checkpoint up.
        """
        self._is_ending = True
        self._put(index)
        try:
            self._prune(keep)
        except (StratagemError, OSError) as error:
            # The new one is there; the next save removes what is left.
            LOG.warning("%s is saved, but older ones stay: %s", self.folder.path, error)
        return self.folder.path

    def _put(self, index: bytes) -> None:
        for left in reversed(range(_ATTEMPTS)):
            try:
                self._calls.create(self.folder.path / INDEX, index)
                return
            except FileExistsError:
                # An earlier attempt may have succeeded without an answer.
                self._require_own(index)
                return
            except StoreError:
                if not left:
                    raise

    def _require_own(self, index: bytes) -> None:
        if self.folder.read(INDEX, len(index)) != index:
            raise AbortedError(
                f"another program has saved to {str(self._root.path)!r} meanwhile, and has removed "
                f"{str(self.folder.path)!r}; let one program at a time save there"
            )

    def abandon(self) -> None:
        """As `NewFolder.abandon`."""
        with suppress(StratagemError, OSError):
            if self._is_ending:
                _give_up(self.folder)
            else:
                _remove(self.folder, ())

    def _bases(self, name: str) -> list[str]:
        folder = self._root.folder(name)
        if not folder.has(BASES):
            return []
        return folder.read(BASES, _MOST_BASES_BYTES).decode().split()

    def _prune(self, keep: int) -> None:
        names = self._root.checkpoints()
        older = names[names.index(self._name) + 1 :]
        folders = [self._root.folder(name) for name in older]
        whole = [folder for folder in folders if folder.is_whole()]
        kept = kept_of([self._name, *(folder.path.name for folder in whole)], keep, self._bases)
        for folder in whole:
            if folder.path.name not in kept:
                # First, so that a partly removed one is not taken for a checkpoint.
                folder.remove(INDEX)
                _remove(folder, ())
        own = number_of_objects(self._name)
        for folder in folders:
            # Another attempt with the same number may be being written.
            if folder not in whole and number_of_objects(folder.path.name) < own:
                _give_up(folder)


def _give_up(folder: ObjectFolder) -> None:
    """Remove an attempt, unless it has become whole."""
    try:
        folder.calls.create(folder.path / INDEX, b"")
    except FileExistsError:
        if folder.is_whole():
            return
    _remove(folder, (INDEX,))
    if folder.calls.age(folder.path / INDEX) > _SEAL_SECONDS:
        folder.remove(INDEX)


def _remove(folder: ObjectFolder, but: Sequence[str]) -> None:
    names = [name for name, is_object in folder.calls.list_names(folder.path) if is_object]
    # What it begins with is last, so that servers write nothing to it until then.
    names.sort(key=lambda name: name == BEGUN)
    for name in names:
        if name not in but:
            folder.remove(name)


_UPLOAD_RUN_BYTES = 1 << 20


class ObjectStore:
    """A store of objects."""

    def folder(self, place: StoreUrl) -> ObjectFolder:
        """As `Store.folder`."""
        return ObjectFolder(place)

    def folder_below(self, root: StoreUrl, place: Place) -> ObjectFolder:
        """As `Store.folder_below`; names in stores lead nowhere else."""
        return ObjectFolder(_below(root, place))

    def folder_and_file(self, place: StoreUrl) -> tuple[ObjectFolder, str]:
        """As `Store.folder_and_file`."""
        if self.is_file(place):
            return ObjectFolder(place.parent), place.name
        return ObjectFolder(place), ""

    def folder_and_file_below(self, root: StoreUrl, place: Place) -> tuple[ObjectFolder, str]:
        """As `Store.folder_and_file_below`."""
        return self.folder_and_file(_below(root, place))

    def is_file(self, place: StoreUrl) -> bool:
        """As `Store.is_file`."""
        return len(place.segments) > 1 and ObjectCalls(place.scheme).size(place) is not None

    def place_of_file(self, place: StoreUrl) -> tuple[ObjectFolder, str]:
        """As `Store.place_of_file`."""
        if len(place.segments) < 2:
            raise InvalidArgumentError(
                f"a checkpoint is one object, but {str(place)!r} is a bucket; pass for instance "
                f"{str(place / 'model.safetensors')!r}"
            )
        return ObjectFolder(place.parent), place.name

    def replace_file(self, place: StoreUrl, write: Callable[[Path], object]) -> None:
        """As `Store.replace_file`: an object appears as a whole."""
        with TemporaryDirectory(prefix="stratagem-") as folder:
            path = Path(folder) / "file"
            write(path)
            ObjectCalls(place.scheme).upload(place, _runs_of(path), replaces=True)

    def new_folder(self, root: StoreUrl, syncs: bool) -> NewObjectFolder:
        """As `Store.new_folder`."""
        return NewObjectFolder(ObjectFolder(root))


def _below(root: StoreUrl, place: Place) -> StoreUrl:
    depth = len(root.segments)
    if not isinstance(place, StoreUrl) or place.scheme != root.scheme:
        raise not_below(root, place)
    if place.segments[:depth] != root.segments:
        raise not_below(root, place)
    return place


def _runs_of(path: Path) -> Iterator[memoryview]:
    with path.open("rb") as file:
        while run := file.read(_UPLOAD_RUN_BYTES):
            yield memoryview(run)
