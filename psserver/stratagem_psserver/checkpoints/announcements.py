"""What the chief has said to be restored, or set, on all servers.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

_MOST_CHARACTERS = 1 << 20
"""The oldest are forgotten beyond that; each but the last one."""


class Announcements:
    """Announced restorations, in their order.

    Those that a checkpoint has count again once the session that made them is back: a
    program that is started anew as a whole restores before its workers go on.
    """

    def __init__(self) -> None:
        self._made: list[tuple[str, bytes]] = []
        self._awaited: list[tuple[str, bytes]] = []

    def add(self, identity: str, session_id: bytes) -> None:
        """Takes note that a session has had a checkpoint restored."""
        self._made.append((identity, session_id))
        while len(self._made) > 1 and self._characters > _MOST_CHARACTERS:
            del self._made[0]

    @property
    def _characters(self) -> int:
        return sum(len(identity) for identity, _ in self._made)

    def session_opened(self, session_id: bytes) -> None:
        """Takes note of a session, which may be one of before."""
        back = [one for one in self._awaited if one[1] == session_id]
        if back:
            self._awaited = [one for one in self._awaited if one[1] != session_id]
            self._made = back + self._made

    @property
    def identities(self) -> Sequence[str]:
        """What was announced."""
        return [identity for identity, _ in self._made]

    def facts(self) -> list[tuple[str, str]]:
        """All that there is, for JSON."""
        known = self._awaited + self._made
        return [(identity, session_id.hex()) for identity, session_id in known]

    def restore(self, facts: Sequence[tuple[str, str]]) -> None:
        """Goes on from the facts of a checkpoint."""
        self._awaited = [(one, bytes.fromhex(session)) for one, session in facts]
