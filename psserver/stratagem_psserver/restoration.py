"""Restorations: what was read for one until it takes place, and which were announced."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from stratagem_proto.protocol import MAX_EXTRA_BYTES, SESSION_ID_BYTES
from stratagem_proto.v1.checkpoint_pb2 import StageVariablesRequest, TrainingRun
from stratagem_psserver.data_ledgers import DataLedger, DataLedgers, ledgers_from_json
from stratagem_psserver.exactly_once.closures import ClosureLedger, Coordinator, closures_from_json
from stratagem_psserver.variables.restoring import Restored
from stratagem_storage.checkpoint.folder import Checkpoint, part_name
from stratagem_storage.checkpoint.index import refused_if_unsound


@dataclass(frozen=True)
class Accounts:
    """The ledgers of data and of scheduled functions at the moment of a checkpoint.

    The functions that had not ended then get new coordinator names. Some have ended since under
    their old names, by which nothing of them is applied any more.

    Attributes:
        data: The ledgers of data; None to keep the server's present ones.
        closures: By new coordinator name: the functions that had not ended, and their mutations.
    """

    data: Sequence[DataLedger] | None
    closures: Mapping[bytes, Coordinator]

    def replace(self, data: DataLedgers, closures: ClosureLedger) -> None:
        """Replace a server's ledgers by these."""
        if self.data is not None:
            data.replace(self.data)
        closures.adopt(self.closures)


def read_accounts(checkpoint: Checkpoint, request: StageVariablesRequest, task: int) -> Accounts:
    """Read the ledgers that a request asks for."""
    servers = checkpoint.index.servers
    renamed = partial(_renamed, request.restoration)
    with refused_if_unsound(str(checkpoint.folder)):
        own = servers.get(part_name(task), {}) if request.closures else {}
        closures = {renamed(name): one for name, one in closures_from_json(own.get("closures", ()))}
        data = _ledgers(servers.values()) if request.data else None
        for ledger in data or ():
            ledger.leave_to_next(renamed, again=request.closures)
        return Accounts(data, closures)


def _ledgers(parts: Collection[Mapping[str, Any]]) -> Sequence[DataLedger] | None:
    """Return the ledgers of the server that kept them; None if the checkpoint has no such entry."""
    known = [part["data"] for part in parts if "data" in part]
    ledgers = [ledger for facts in known for ledger in ledgers_from_json(facts)]
    return ledgers if known else None


def _renamed(restoration: bytes, space: bytes) -> bytes:
    return blake2b(restoration + space, digest_size=SESSION_ID_BYTES).digest()


class StagedVariables(NamedTuple):
    """What was read for a restoration.

    Attributes:
        variables: The values of variables.
        accounts: The ledgers of data and of scheduled functions.
    """

    variables: Sequence[Restored]
    accounts: Accounts


class Staging:
    """The restorations that sessions have staged, at most one each.

    Args:
        label: The server's name, for messages.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._staged: dict[bytes, tuple[bytes, StagedVariables]] = {}

    def keep(self, session_id: bytes, restoration: bytes, staged: StagedVariables) -> None:
        """Keep what was read; it replaces what the session had staged before."""
        self._staged[session_id] = restoration, staged

    def take(self, session_id: bytes, restoration: bytes) -> StagedVariables:
        """Remove and return what a session has staged."""
        known, staged = self._staged.pop(session_id, (b"", None))
        if staged is None or known != restoration:
            raise FailedPreconditionError(
                f"{self._label} has not read what it is to restore; it may have restarted meanwhile"
            )
        return staged

    @property
    def is_used(self) -> bool:
        return bool(self._staged)

    def forget(self, session_id: bytes) -> None:
        """Drop what a session has staged, if anything."""
        self._staged.pop(session_id, None)


def check_run(run: TrainingRun) -> None:
    """Raise InvalidArgumentError if what a client tells of a run is too long to be kept."""
    if max(len(run.extra), len(run.path)) > MAX_EXTRA_BYTES:
        raise InvalidArgumentError(
            f"a run is told with {len(run.extra)} characters of `extra` and a path of "
            f"{len(run.path)}; at most {MAX_EXTRA_BYTES} are kept of each"
        )


_MOST_CHARACTERS = 1 << 20
"""The limit of all identities together, beyond which the oldest are dropped. The last one stays."""


class Announcements:
    """The announced restorations, in their order.

    Announcements from a checkpoint count again once the session that made them is resumed. A
    program that is started again as a whole makes new ones before its workers go on.

    Attributes:
        run: What tasks train together; None before anybody has told of it. A task that is started
            again joins it.
    """

    def __init__(self) -> None:
        self._known: list[tuple[str, bytes]] = []
        # The sessions of a checkpoint that were not resumed since.
        self._awaited: set[bytes] = set()
        self.run: TrainingRun | None = None

    def add(self, identity: str, session_id: bytes) -> None:
        """Note that a session has restored a checkpoint."""
        self._known.append((identity, session_id))
        while len(self._known) > 1 and sum(len(one) for one, _ in self._known) > _MOST_CHARACTERS:
            del self._known[0]

    def begin(self, run: TrainingRun) -> None:
        """Note which run has begun; `check_run` has seen it."""
        if run.restoration or self.run is None:
            self.run = run

    def run_facts(self) -> str | None:
        return None if self.run is None else b64encode(self.run.SerializeToString()).decode()

    def restore_run(self, facts: str | None) -> None:
        self.run = None if facts is None else TrainingRun.FromString(b64decode(facts))

    def session_opened(self, session_id: bytes) -> None:
        """Note that a session is open, which may be one of a checkpoint."""
        self._awaited.discard(session_id)

    @property
    def identities(self) -> Sequence[str]:
        """The identities of the announced restorations."""
        return [identity for identity, session in self._known if session not in self._awaited]

    def facts(self) -> list[tuple[str, str]]:
        return [(identity, session_id.hex()) for identity, session_id in self._known]

    def awaited(self) -> list[str]:
        """Return the sessions whose announcements do not count yet, as JSON."""
        return sorted(session_id.hex() for session_id in self._awaited)

    def restore(self, facts: Sequence[tuple[str, str]], awaited: Sequence[str]) -> None:
        """Restore announcements."""
        self._known = [(one, bytes.fromhex(session)) for one, session in facts]
        self._awaited = {bytes.fromhex(session) for session in awaited}
