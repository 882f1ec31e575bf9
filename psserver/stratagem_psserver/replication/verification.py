"""Whether a backup has the same bytes as its primary."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from stratagem_proto.server_log import LOG
from stratagem_proto.v1.log_pb2 import LogRecord
from stratagem_psserver.persistence.images import moment_of
from stratagem_psserver.replication.backup_link import BackupLink
from stratagem_psserver.replication.digests import digests_beside
from stratagem_psserver.replication.replicated_log import ReplicatedLog
from stratagem_psserver.state import ServerState


class Verification:
    """Compares digests of the state now and then; a backup that differs is sent away.

    Args:
        state: The state of the primary.
        log: Its log, which gets a mark for each comparison.

    Attributes:
        verified: The position of the last mark at which both were equal; 0 before there was one.
    """

    def __init__(self, state: ServerState, log: ReplicatedLog) -> None:
        self.verified = 0
        self._state, self._log = state, log
        self._seconds = state.settings.verify_seconds
        self._due = state.clock() + self._seconds
        self._comparing: asyncio.Task[None] | None = None

    def tend(self, link: BackupLink | None) -> None:
        """Begin a comparison if it is time, and end the call of a backup that differs."""
        if link is None or self._state.clock() < self._due:
            return
        if self._comparing is None or self._comparing.done():
            self._due = self._state.clock() + self._seconds
            self._comparing = asyncio.ensure_future(self.compare(link))

    async def compare(self, link: BackupLink) -> None:
        """Mark a position, and compare the digests there once the backup has told its own."""
        moment = await moment_of(self._state)
        if moment is None:
            return
        position = self._log.append(LogRecord(mark=True))
        own = await digests_beside(self._state, moment)
        other = await link.digests_at(position)
        if other == own:
            self.verified = position
        elif other is not None:
            LOG.error(
                "the backup differs, and gets another image",
                task=self._state.settings.label,
                position=position,
                parts=", ".join(sorted(_different(own, other))),
            )
            link.close()


def _different(own: Mapping[str, bytes], other: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the names of the parts whose digests differ."""
    return (name for name in {*own, *other} if own.get(name) != other.get(name))
