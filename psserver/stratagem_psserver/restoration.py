"""What is read for a restoration, kept until it takes place, and who heard of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from stratagem_proto.checkpoint.folder import open_checkpoint, part_name
from stratagem_proto.errors import FailedPreconditionError
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.v1.checkpoint_pb2 import StageVariablesRequest
from stratagem_psserver.data.data_ledger import DataLedger
from stratagem_psserver.data.data_ledgers import DataLedgers, ledgers_from_json
from stratagem_psserver.exactly_once.closures import ClosureLedger, Space
from stratagem_psserver.exactly_once.recorded_closures import spaces_of
from stratagem_psserver.variables.restoring import Restored


@dataclass(frozen=True)
class Accounts:
    """What was accounted for at the moment of a checkpoint.

    Functions that had not ended then have other coordinators here: some have ended since under
    their own names, by which nothing of them is applied any more.

    Attributes:
        data: The ledgers of data, which nobody reads yet; None to keep those there are.
        closures: Functions that had not ended, and what was applied of them.
    """

    data: Sequence[DataLedger] | None
    closures: Mapping[bytes, Space]

    def replace(self, data: DataLedgers, closures: ClosureLedger) -> None:
        """Put them in place of what a server has."""
        if self.data is not None:
            data.replace(self.data)
        closures.adopt(self.closures)


def read_accounts(request: StageVariablesRequest, task: int) -> Accounts:
    """Read what a request asks for.

    Args:
        request: What to read, and where.
        task: The server's.

    Raises:
        NotFoundError: There is no checkpoint.
        DataLossError: It is damaged.
    """
    servers = open_checkpoint(request.path).index.servers
    renamed = partial(_renamed, request.restoration)
    own = servers.get(part_name(task), {}) if request.closures else {}
    closures = {renamed(name): one for name, one in spaces_of(own.get("closures", ()))}
    data = _ledgers(servers.values()) if request.data else None
    for ledger in data or ():
        ledger.give_up(renamed, again=request.closures)
    return Accounts(data, closures)


def _ledgers(parts: Collection[Mapping[str, Any]]) -> Sequence[DataLedger] | None:
    """The ledgers, which one server kept; None if it is not said whether there are."""
    known = [part["data"] for part in parts if "data" in part]
    ledgers = [ledger for facts in known for ledger in ledgers_from_json(facts)]
    return ledgers if known else None


def _renamed(restoration: bytes, space: bytes) -> bytes:
    return blake2b(restoration + space, digest_size=SESSION_ID_BYTES).digest()


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

    def keep(self, session_id: bytes, restoration: bytes, staged: StagedVariables) -> None:
        """Keep what was read, in place of what the session had staged before."""
        self._staged[session_id] = restoration, staged

    def take(self, session_id: bytes, restoration: bytes) -> StagedVariables:
        """Return what a session has staged, which is then forgotten here.

        Raises:
            FailedPreconditionError: It is not that restoration.
        """
        known, staged = self._staged.pop(session_id, (b"", None))
        if staged is None or known != restoration:
            raise FailedPreconditionError(
                f"{self._label} has not read what it is to restore; it may have restarted meanwhile"
            )
        return staged

    def forget(self, session_id: bytes) -> None:
        """Give up what a session has staged, if anything."""
        self._staged.pop(session_id, None)


_MOST_CHARACTERS = 1 << 20
"""The oldest are forgotten beyond that; each but the last one."""


class Announcements:
    """Announced restorations, in their order.

    Those that a checkpoint has count again once the session that made them is back: a program that
    is started anew as a whole restores before its workers go on.
    """

    def __init__(self) -> None:
        self._made: list[tuple[str, bytes]] = []
        self._awaited: list[tuple[str, bytes]] = []

    def add(self, identity: str, session_id: bytes) -> None:
        """Note that a session has had a checkpoint restored."""
        self._made.append((identity, session_id))
        while len(self._made) > 1 and self._characters > _MOST_CHARACTERS:
            del self._made[0]

    @property
    def _characters(self) -> int:
        return sum(len(identity) for identity, _ in self._made)

    def session_opened(self, session_id: bytes) -> None:
        """Note a session, which may be one of before."""
        back = [one for one in self._awaited if one[1] == session_id]
        if back:
            self._awaited = [one for one in self._awaited if one[1] != session_id]
            self._made = back + self._made

    @property
    def identities(self) -> Sequence[str]:
        """What was announced."""
        return [identity for identity, _ in self._made]

    def facts(self) -> list[tuple[str, str]]:
        """Return all that there is, for JSON."""
        known = self._awaited + self._made
        return [(identity, session_id.hex()) for identity, session_id in known]

    def restore(self, facts: Sequence[tuple[str, str]]) -> None:
        """Go on from the facts of a checkpoint."""
        self._awaited = [(one, bytes.fromhex(session)) for one, session in facts]
