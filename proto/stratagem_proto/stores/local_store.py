"""The file system as a store of checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from stratagem_proto.errors import InvalidArgumentError, NotFoundError
from stratagem_proto.stores.local import LocalFolder
from stratagem_proto.stores.local_saving import NewLocalFolder
from stratagem_proto.stores.places import Place
from stratagem_proto.stores.store import not_below


class LocalStore:
    """The file system."""

    def folder(self, place: Path) -> LocalFolder:
        """As `Store.folder`."""
        return LocalFolder.at(place)

    def folder_below(self, root: Path, place: Place) -> LocalFolder:
        """As `Store.folder_below`."""
        folder, file = self.found_below(root, place)
        return folder.folder(file) if file else folder

    def found(self, place: Path) -> tuple[LocalFolder, str]:
        """As `Store.found`."""
        if place.is_file():
            # Links that somebody has named are followed, as caches of files have them.
            real = place.resolve()
            return LocalFolder.at(real.parent), real.name
        return LocalFolder.at(place), ""

    def found_below(self, root: Path, place: Place) -> tuple[LocalFolder, str]:
        """As `Store.found_below`."""
        parts = _parts_below(root, place)
        folder = LocalFolder.at(root)
        for number, part in enumerate(parts, 1):
            if number == len(parts) and folder.has_file(part):
                return folder, part
            folder = folder.folder(part)
        return folder, ""

    def is_file(self, place: Path) -> bool:
        """As `Store.is_file`."""
        return place.is_file()

    def place_of_file(self, place: Path) -> tuple[LocalFolder, str]:
        """As `Store.place_of_file`."""
        if place.is_dir():
            raise InvalidArgumentError(
                f"a checkpoint is one file, but {str(place)!r} is a folder; pass for "
                f"instance {str(place / 'model.safetensors')!r}"
            )
        if not place.parent.is_dir():
            raise NotFoundError(
                f"there is no folder {str(place.parent)!r} to save a checkpoint in; make it first"
            )
        return LocalFolder.at(place.parent), place.name

    def replace_file(self, place: Path, write: Callable[[Path], object]) -> None:
        """As `Store.replace_file`."""
        partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
        try:
            write(partial)
            partial.replace(place)
        finally:
            partial.unlink(missing_ok=True)

    def new_folder(self, root: Path, syncs: bool) -> NewLocalFolder:
        """As `Store.new_folder`."""
        return NewLocalFolder(root, syncs)


def _parts_below(root: Path, place: Place) -> tuple[str, ...]:
    for base in (root, root.resolve()):
        if isinstance(place, Path) and place.is_relative_to(base) and ".." not in place.parts:
            return place.relative_to(base).parts
    raise not_below(root, place)
