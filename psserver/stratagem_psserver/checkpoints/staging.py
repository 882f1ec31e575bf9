"""What a checkpoint has for variables, until all servers have read their parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stratagem_proto.errors import FailedPreconditionError
from stratagem_psserver.checkpoints.accounts import Accounts
from stratagem_psserver.checkpoints.restoring import Restored


class StagedVariables(NamedTuple):
    """What was read.

    Attributes:
        variables: What variables get.
        accounts: What is accounted for then.
    """

    variables: Sequence[Restored]
    accounts: Accounts


class Staging:
    """What sessions have staged, at most one restoration each.

    Args:
        label: The server, for messages.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._staged: dict[bytes, tuple[bytes, StagedVariables]] = {}

    def keep(
        self, session_id: bytes, restoration: bytes, staged: StagedVariables
    ) -> None:
        """Keeps what was read, in place of what the session had staged before."""
        self._staged[session_id] = restoration, staged

    def take(self, session_id: bytes, restoration: bytes) -> StagedVariables:
        """What a session has staged, which is then forgotten here.

        Raises:
            FailedPreconditionError: It is not that restoration.
        """
        known, staged = self._staged.pop(session_id, (b"", None))
        if staged is None or known != restoration:
            raise FailedPreconditionError(
                f"{self._label} has not read what it is to restore; it may have "
                "restarted meanwhile"
            )
        return staged

    def forget(self, session_id: bytes) -> None:
        """Gives up what a session has staged, if anything."""
        self._staged.pop(session_id, None)
