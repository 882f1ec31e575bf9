"""Checkpoints in stores of objects, which have no folders and no renaming."""

from __future__ import annotations

from collections.abc import Iterable

from stratagem_proto.errors import DataLossError
from stratagem_proto.open_folders import is_plain_name
from stratagem_proto.stores.names import BEGUN, INDEX, number_of_objects
from stratagem_proto.stores.object_calls import ObjectCalls
from stratagem_proto.stores.places import StoreUrl

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
        names = {name for name, _ in self.calls.listed(self.path) if number_of_objects(name)}
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
