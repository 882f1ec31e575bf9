"""What parameter servers find on disk when they start, and keep there."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stratagem_proto.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from stratagem_proto.serving.policy import AccessPolicy, read_policy
from stratagem_proto.stores.places import absolute_place, shared_place
from stratagem_psserver.settings import Durability

_LOG = logging.getLogger("stratagem")


@dataclass(frozen=True)
class Storage:
    """Files and folders of parameter servers.

    Attributes:
        restore: Absolute path or URL of the folder of checkpoints that they begin with; "" to begin
            with nothing.
        durability: What the end of a server may lose, as in `ServerSettings`.
        durability_folder: Absolute path of the folder for what durability needs; "" if it needs
            nothing.
        policy: Absolute path of the file that says what tasks and roles may do; "" if their roles
            alone say it.

    Raises:
        InvalidArgumentError: There is a durability without a folder, or a folder without one; or
            the policy cannot be read, or a line of it is not valid.
    """

    restore: str = ""
    durability: Durability = "none"
    durability_folder: str = ""
    policy: str = ""

    def __post_init__(self) -> None:
        if self.durability != "none" and not self.durability_folder:
            raise InvalidArgumentError(
                f"durability {self.durability!r} needs a folder on a disk; name it by "
                "--durability-folder or durability_folder="
            )
        if self.durability == "none" and self.durability_folder:
            raise InvalidArgumentError(
                f"nothing is kept in the folder {self.durability_folder!r} without a durability; "
                "give 'log' or 'snapshot' by --durability or durability=, or leave the folder out"
            )
        self._read_policy()

    def _read_policy(self) -> AccessPolicy | None:
        return read_policy(Path(self.policy)) if self.policy else None

    def check_written_by(self, ps: int) -> None:
        """Check that so many servers have written the checkpoint that servers begin with, if any.

        Each server restores its own part, so the parts that fewer servers leave would be missing.

        Raises:
            FailedPreconditionError: Another number of servers has.
        """
        if not self.restore:
            return
        # It loads torch, for which commands without checkpoints do not wait.
        from stratagem_proto.checkpoint.folder import open_checkpoint

        try:
            checkpoint = open_checkpoint(shared_place(self.restore))
        except NotFoundError:
            # As before the first save; or the name is misspelt.
            _LOG.warning("no checkpoint is in %r; servers begin with nothing", self.restore)
            return
        except DataLossError:
            # Servers say what is damaged.
            return
        if (written := len(checkpoint.index.servers)) != ps:
            by, remedy = f"{written} servers wrote it", f"Start {written}, or begin"
            if not written:
                by, remedy = "no servers, but a command or a program wrote it", "Begin"
            raise FailedPreconditionError(
                f"{ps} parameter servers cannot begin with {self.restore!r}: {by}, and each "
                f"restores only its own part. {remedy} without it and let the program restore it "
                "by strategy.restore(), which takes any number of servers"
            )

    @property
    def outlives_servers(self) -> bool:
        """Whether a server that has ended goes on where it was when it is started again."""
        return self.durability == "log"

    @property
    def settings(self) -> Mapping[str, Any]:
        """These as settings of a server, by name."""
        return {**asdict(self), "policy": self._read_policy()}

    @property
    def options(self) -> tuple[str, ...]:
        """The options of a server's command line."""
        restore = ("--restore", self.restore) if self.restore else ()
        policy = ("--policy", self.policy) if self.policy else ()
        if self.durability == "none":
            return (*restore, *policy)
        folder = "--durability-folder", self.durability_folder
        return (*restore, *policy, "--durability", self.durability, *folder)


def storage(
    restore: str | os.PathLike[str] | None,
    durability: Durability = "none",
    durability_folder: str | os.PathLike[str] | None = None,
    policy: str | os.PathLike[str] | None = None,
) -> Storage:
    """Return files and folders by paths that may be relative; it raises like `Storage`."""
    folder = _absolute(durability_folder)
    return Storage(_shared(restore), durability, folder, _absolute(policy))


def _shared(path: str | os.PathLike[str] | None) -> str:
    return "" if path is None else str(shared_place(absolute_place(path)))


def _absolute(path: str | os.PathLike[str] | None) -> str:
    return "" if path is None else os.path.abspath(path)
