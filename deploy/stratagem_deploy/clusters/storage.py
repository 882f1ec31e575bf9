"""What parameter servers find on disk when they start, and keep there."""

from __future__ import annotations

import os
from dataclasses import dataclass

from stratagem_proto.errors import InvalidArgumentError
from stratagem_psserver.settings import Durability


@dataclass(frozen=True)
class Storage:
    """Folders of parameter servers.

    Attributes:
        restore: Absolute path of the folder of checkpoints that they begin with; "" to begin with
            nothing.
        durability: What the end of a server may lose, as in `ServerSettings`.
        durability_folder: Absolute path of the folder for what durability needs; "" if it needs
            nothing.

    Raises:
        InvalidArgumentError: There is a durability without a folder, or a folder without one.
    """

    restore: str = ""
    durability: Durability = "none"
    durability_folder: str = ""

    def __post_init__(self) -> None:
        if (self.durability == "none") == bool(self.durability_folder):
            raise InvalidArgumentError(
                f"durability is {self.durability!r} and its folder is "
                f"{self.durability_folder or 'not given'!r}; give both, for instance 'log' and a "
                "folder on a disk, or neither"
            )

    @property
    def outlives_servers(self) -> bool:
        """Whether a server that has ended goes on where it was when it is started again."""
        return self.durability == "log"

    @property
    def options(self) -> tuple[str, ...]:
        """The options of a server's command line."""
        restore = ("--restore", self.restore) if self.restore else ()
        if self.durability == "none":
            return restore
        folder = "--durability-folder", self.durability_folder
        return (*restore, "--durability", self.durability, *folder)


def storage(
    restore: str | os.PathLike[str] | None,
    durability: Durability = "none",
    durability_folder: str | os.PathLike[str] | None = None,
) -> Storage:
    """Return folders by paths that may be relative; it raises like `Storage`."""
    return Storage(_absolute(restore), durability, _absolute(durability_folder))


def _absolute(path: str | os.PathLike[str] | None) -> str:
    return "" if path is None else os.path.abspath(path)
