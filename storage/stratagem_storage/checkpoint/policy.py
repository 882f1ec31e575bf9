"""Who may have written a checkpoint, and where it is; loads no torch, as commands must not."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratagem_proto.secret_files import CHECKPOINT_KEY_FILE
from stratagem_storage.stores import store_of
from stratagem_storage.stores.places import Place
from stratagem_storage.stores.store import Folder


@dataclass(frozen=True)
class CheckpointPolicy:
    """What a process demands of the checkpoints that it opens.

    Attributes:
        root: The folder that all of them are in, by paths without links behind it; None for any
            folder.
        key: The key that has to have signed them, and that new ones are signed with; "" if they
            need no signature.
    """

    root: Place | None = None
    key: str = field(default="", repr=False)

    def folder(self, place: Place) -> Folder:
        """Open a folder that may have checkpoints, without asking any network.

        Raises:
            OSError: There is none.
            PermissionDeniedError: It is not below the root.
            DataLossError: The path leads out of the root by a link.
        """
        if self.root is not None:
            return store_of(self.root).folder_below(self.root, place)
        return store_of(place).folder(place)

    def folder_and_file(self, place: Place) -> tuple[Folder, str]:
        """Open a folder, or that of a file; it raises like `folder`.

        Returns:
            The folder, and the name of the file in it; "" if the place is that of the folder.
        """
        if self.root is not None:
            return store_of(self.root).folder_and_file_below(self.root, place)
        return store_of(place).folder_and_file(place)


ANY = CheckpointPolicy()
"""Demands nothing."""


def policy_of_environment() -> CheckpointPolicy:
    """Return what a program demands that is not a server: a signature, if it is given a key.

    Raises:
        InvalidArgumentError: The file with the key cannot be read, or is no such file.
    """
    return CheckpointPolicy(key=CHECKPOINT_KEY_FILE.from_environment())
