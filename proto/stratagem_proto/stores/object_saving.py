"""Writing checkpoints to stores of objects: one exists once its index does.

A store has no renaming, so each attempt has a folder of its own, whose name is used only once. Its
index is put last, by one request on the condition that there is none. Whoever removes an attempt
puts an empty index first, on the same condition. So either the checkpoint is whole, or no index of
it can appear any more, whatever requests are still under way.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress

from stratagem_proto.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    StoreError,
    StratagemError,
)
from stratagem_proto.stores.names import BASES, BEGUN, INDEX, number_of_objects
from stratagem_proto.stores.object_calls import LOG
from stratagem_proto.stores.objects import ObjectFolder
from stratagem_proto.stores.places import StoreUrl
from stratagem_proto.stores.retention import kept_of

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
    names = [name for name, is_object in folder.calls.listed(folder.path) if is_object]
    # What it begins with is last, so that servers write nothing to it until then.
    names.sort(key=lambda name: name == BEGUN)
    for name in names:
        if name not in but:
            folder.remove(name)
