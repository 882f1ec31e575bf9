"""What a checkpoint has for variables, until all servers have read their parts."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem_proto.errors import FailedPreconditionError
from stratagem_psserver.checkpoints.restoring import Restored


class Staging:
    """What sessions have staged, at most one restoration each.

    Args:
        label: The server, for messages.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._staged: dict[bytes, tuple[bytes, Sequence[Restored]]] = {}

    def keep(
        self, session_id: bytes, restoration: bytes, restored: Sequence[Restored]
    ) -> None:
        """Keeps what was read, in place of what the session had staged before."""
        self._staged[session_id] = restoration, restored

    def take(self, session_id: bytes, restoration: bytes) -> Sequence[Restored]:
        """What a session has staged, which is then forgotten here.

        Raises:
            FailedPreconditionError: It is not that restoration.
        """
        staged, restored = self._staged.pop(session_id, (b"", ()))
        if staged != restoration:
            raise FailedPreconditionError(
                f"{self._label} has not read what it is to restore; it may have "
                "restarted meanwhile"
            )
        return restored

    def forget(self, session_id: bytes) -> None:
        """Gives up what a session has staged, if anything."""
        self._staged.pop(session_id, None)
