"""What a process demands of the checkpoints that it opens."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stratagem_proto.configuration.checkpoint_key import checkpoint_key_from_environment
from stratagem_proto.errors import PermissionDeniedError
from stratagem_proto.open_folders import OpenFolder


@dataclass(frozen=True)
class CheckpointPolicy:
    """What a process demands of the checkpoints that it opens.

    Attributes:
        root: The folder that all of them are in, by paths without links behind it; None for any
            folder.
        key: The key that has to have signed them, and that new ones are signed with; "" if they
            need no signature.
    """

    root: Path | None = None
    key: str = field(default="", repr=False)

    def folder(self, path: Path) -> OpenFolder:
        """Open a folder that may have checkpoints.

        Raises:
            OSError: There is none.
            PermissionDeniedError: It is not below the root.
            DataLossError: The path leads out of the root by a link.
        """
        folder, file = self.found(path)
        return folder.folder(file) if file else folder

    def found(self, path: Path) -> tuple[OpenFolder, str]:
        """Open a folder, or that of a file; it raises like `folder`.

        Returns:
            The folder, and the name of the file in it; "" if the path is that of the folder.
        """
        if self.root is not None:
            return self._below(self.root, path)
        if path.is_file():
            # Links that somebody has named are followed, as caches of files have them.
            real = path.resolve()
            return OpenFolder.at(real.parent), real.name
        return OpenFolder.at(path), ""

    def _below(self, root: Path, path: Path) -> tuple[OpenFolder, str]:
        parts = _parts_below(root, path)
        folder = OpenFolder.at(root)
        for number, part in enumerate(parts, 1):
            if number == len(parts) and folder.has_file(part):
                return folder, part
            folder = folder.folder(part)
        return folder, ""


ANY = CheckpointPolicy()
"""Demands nothing."""


def policy_of_environment() -> CheckpointPolicy:
    """Return what a program demands that is not a server: a signature, if it is given a key.

    Raises:
        InvalidArgumentError: The file with the key cannot be read, or is no such file.
    """
    return CheckpointPolicy(key=checkpoint_key_from_environment())


def _parts_below(root: Path, path: Path) -> tuple[str, ...]:
    for place in (root, root.resolve()):
        if path.is_relative_to(place) and ".." not in path.parts:
            return path.relative_to(place).parts
    raise PermissionDeniedError(
        f"{str(path)!r} is not below {str(root)!r}, where alone checkpoints are read and written "
        "here; use a folder there, or start the server with another --checkpoint-root"
    )
