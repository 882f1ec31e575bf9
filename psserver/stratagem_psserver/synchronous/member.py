"""A worker of a synchronous group."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Member:
    """A worker of a group, according to its latest contribution.

    Attributes:
        session_id: The session of that contribution.
        task: The worker's name, for messages.
        gone: How the session ended, as a clause; "" while it is open.
        left: Whether its client ended the session, and so will not resume it.
        given_up: Whether others have waited long enough for it to come back.
    """

    session_id: bytes
    task: str
    gone: str = ""
    left: bool = False
    given_up: bool = False

    @property
    def may_come_back(self) -> bool:
        """Whether it is gone, and may be started again while others wait."""
        return bool(self.gone) and not self.left and not self.given_up

    def is_lost(self, waits: bool) -> bool:
        """Return whether it is gone, and others do not wait for it to come back.

        Args:
            waits: Whether others wait for a worker that may come back.
        """
        return bool(self.gone) and not (waits and self.may_come_back)
