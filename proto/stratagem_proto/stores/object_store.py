"""Stores of objects as stores of checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.stores.object_calls import ObjectCalls
from stratagem_proto.stores.object_saving import NewObjectFolder
from stratagem_proto.stores.objects import ObjectFolder
from stratagem_proto.stores.places import Place, StoreUrl
from stratagem_proto.stores.store import not_below

_UPLOAD_RUN_BYTES = 1 << 20


class ObjectStore:
    """A store of objects."""

    def folder(self, place: StoreUrl) -> ObjectFolder:
        """As `Store.folder`."""
        return ObjectFolder(place)

    def folder_below(self, root: StoreUrl, place: Place) -> ObjectFolder:
        """As `Store.folder_below`; names in stores lead nowhere else."""
        return ObjectFolder(_below(root, place))

    def found(self, place: StoreUrl) -> tuple[ObjectFolder, str]:
        """As `Store.found`."""
        if self.is_file(place):
            return ObjectFolder(place.parent), place.name
        return ObjectFolder(place), ""

    def found_below(self, root: StoreUrl, place: Place) -> tuple[ObjectFolder, str]:
        """As `Store.found_below`."""
        return self.found(_below(root, place))

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
