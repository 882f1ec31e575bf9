"""Digests of all state, by which a primary and its backup see that they are equal."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from stratagem_proto.wire.tensors import as_bytes
from stratagem_psserver.persistence.images import Moment
from stratagem_psserver.state import ServerState
from stratagem_psserver.variables.snapshot import Snapshot

# What a client has acknowledged is told by requests of which a log has none.
_UNRECORDED = {"acknowledged", "replies"}


async def digests_beside(state: ServerState, moment: Moment) -> Mapping[str, bytes]:
    """Return the digests of a state at a moment, computed beside the event loop."""
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
