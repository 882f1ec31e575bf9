"""Whether a backup has the same bytes as its primary."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from stratagem_proto.v1.log_pb2 import LogRecord
from stratagem_proto.wire.tensors import as_bytes
from stratagem_psserver.persistence.images import Moment, moment_of
from stratagem_psserver.replication.backup_link import BackupLink
from stratagem_psserver.replication.replicated_log import ReplicatedLog
from stratagem_psserver.state import ServerState
from stratagem_psserver.variables.snapshots import Snapshot
from stratagem_rpc.server_log import LOG

# What a client has acknowledged is told by requests of which a log has none.
_UNRECORDED = {"acknowledged", "replies"}


async def digests_beside(state: ServerState, moment: Moment) -> Mapping[str, bytes]:
    try:
        return await asyncio.get_running_loop().run_in_executor(None, digests_of, moment)
    finally:
        state.snapshots.close(moment.snapshot)


def digests_of(moment: Moment) -> Mapping[str, bytes]:
    """Return the SHA-256 of each part of the state at a moment, by its name; on any thread."""
    facts = {
        name: hashlib.sha256(json.dumps(fact, sort_keys=True).encode()).digest()
        for name, fact in _recorded(moment.facts).items()
    }
    return {"variables": _digest_of_variables(moment.snapshot), **facts}


def _digest_of_variables(snapshot: Snapshot) -> bytes:
    """Return the digest of all values.

    The rows of tables count in the order in which they are stored, which is that of their coming on
    both replicas.
    """
    digest = hashlib.sha256()
    for content in snapshot.contents:
        digest.update(content.spec.SerializeToString(deterministic=True))
        digest.update(content.version.to_bytes(8, "little"))
    for run in snapshot.taken():
        digest.update(as_bytes(run))
    return digest.digest()


def _recorded(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that follow from the records of a log alone."""
    exact = dict(facts["exact"])
    # The steps that clients have finished are known once a request comes, and recorded once it is
    # applied.
    del exact["position"], exact["gate"]
    exact["open"] = sorted(exact["open"])
    sessions = [
        {name: value for name, value in session.items() if name not in _UNRECORDED}
        for session in facts["sessions"]
    ]
    sessions.sort(key=lambda session: str(session["id"]))
    # What is exact of groups contains what the other facts have of them.
    others = {name: fact for name, fact in facts.items() if name != "exact"}
    return {**others, **exact, "sessions": sessions}


class Verification:
    """Compares digests of the state now and then; a backup that differs is sent away.

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
    return (name for name in {*own, *other} if own.get(name) != other.get(name))
