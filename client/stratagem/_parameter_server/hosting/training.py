"""The training that the variables of all servers belong to, and what a server has lost of it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence, Set

from stratagem._parameter_server.variables.variable import RemoteVariable
from stratagem_proto.errors import AttachmentError, FailedPreconditionError
from stratagem_proto.protocol import SESSION_ID_BYTES


class Training:
    """What the task that creates variables knows of their training.

    A server that was started again without what it had knows of no training. To create its
    variables anew beside those that other servers have kept would make a model of old and new
    values. So they do not exist before they get values from a checkpoint, or are assigned.

    Attributes:
        identifier: As in `CreateVariablesHeader`; empty before `begin`.
        unaware: The servers that are to be told of it.
        lost_by: The servers that know nothing of it, but had variables of it.
    """

    def __init__(self) -> None:
        """Know of none."""
        self.identifier = b""
        self.unaware: set[int] = set()
        self.lost_by: set[int] = set()
        self._withheld: set[str] = set()

    def begin(self, told: Mapping[int, bytes], trained: Set[int], task: str) -> None:
        """Go on with the training of an earlier run, or begin one.

        Args:
            told: What each server says that the training is, by its index.
            trained: The servers that have variables of the earlier run whose values have changed.
            task: The name of this task, for messages.

        Raises:
            AttachmentError: These variables belong to several trainings.
        """
        earlier = {told[server] for server in trained}
        if len(earlier) > 1:
            servers = " and ".join(f"/job:ps/task:{server}" for server in sorted(trained))
            raise AttachmentError(
                f"the servers {servers} have variables of different trainings, perhaps of "
                "checkpoints that do not belong together. Restart all servers, with one checkpoint "
                "or with none",
                task=task,
            )
        known = next(iter(earlier), b"")
        self.identifier = known or secrets.token_bytes(SESSION_ID_BYTES)
        others = {server for server, training in told.items() if training != self.identifier}
        if known:
            self.lost_by = others
        else:
            self.unaware = others

    def creatable(self, variables: Sequence[RemoteVariable]) -> list[RemoteVariable]:
        """Return the variables that may be created now; the others are withheld."""
        self.withhold(one for one in variables if one.place.server in self.lost_by)
        return [one for one in variables if one.name not in self._withheld]

    def withhold(self, variables: Iterable[RemoteVariable]) -> None:
        """Note that variables do not exist before they get values."""
        self._withheld.update(one.name for one in variables)

    def released(self, variables: Iterable[RemoteVariable]) -> list[RemoteVariable]:
        """Return those of variables that are withheld, and withhold them no more."""
        released = [one for one in variables if one.name in self._withheld]
        self._withheld.difference_update(one.name for one in released)
        return released

    @property
    def is_whole(self) -> bool:
        """Whether no variables are withheld."""
        return not self._withheld

    def require_all(self, what: str) -> None:
        """Check that no variables are withheld, as `what` needs; raise as `require`."""
        if self._withheld:
            raise self._lacking(min(self._withheld), what)

    def require(self, variables: Iterable[RemoteVariable]) -> None:
        """Check that variables exist.

        Raises:
            FailedPreconditionError: One is withheld.
        """
        for variable in variables if self._withheld else ():
            if variable.name in self._withheld:
                raise self._lacking(variable.name, "the program", [variable.place.server])

    def _lacking(
        self, name: str, what: str, servers: Sequence[int] = ()
    ) -> FailedPreconditionError:
        lost = " and ".join(f"/job:ps/task:{one}" for one in servers or sorted(self.lost_by))
        return FailedPreconditionError(
            f"{what} needs {name!r}, which {lost} had before it was started again without it, "
            "while other servers have kept the values of an earlier run. First restore a "
            "checkpoint by strategy.restore(), or assign a value to it; or restart all servers to "
            "begin anew. A server with --durability log loses nothing when it is started again",
            variable=name,
        )
