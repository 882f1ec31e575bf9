"""What replicas ask of whoever decides which of them is the primary."""

from __future__ import annotations

from typing import Protocol

from stratagem_proto.v1.replication_pb2 import View


class Arbiter(Protocol):
    """Keeps the view of one task, and replaces it only for who knows the present one.

    This is a compare-and-set register, which all replicas of the task reach or none can change.
    """

    async def read(self) -> View | None:
        """Return the present view; None before there was one.

        Raises:
            UnavailableError: The arbiter cannot be reached.
            DataLossError: What it has is no view.
        """

    async def replace(self, present: View | None, following: View) -> bool:
        """Replace the view that is expected to be the present one; return whether it was.

        Args:
            present: The view that is to be replaced; None if there is none yet.
            following: The next view, with the next epoch.

        Raises:
            UnavailableError: The arbiter cannot be reached. The view may have been replaced.
        """

    async def close(self) -> None:
        """Release what it holds; a repetition does nothing."""
