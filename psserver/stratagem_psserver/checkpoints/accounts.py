"""What a checkpoint has of data that were read, for a server that goes on running."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

from stratagem_proto.checkpoint.folder import open_checkpoint, part_name
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.v1.checkpoint_pb2 import StageVariablesRequest
from stratagem_psserver.data.data_ledger import DataLedger
from stratagem_psserver.data.data_ledgers import DataLedgers, ledgers_from_json
from stratagem_psserver.exactly_once.closures import ClosureLedger, Space
from stratagem_psserver.exactly_once.recorded_closures import spaces_of


@dataclass(frozen=True)
class Accounts:
    """What was accounted for at the moment of a checkpoint.

    Functions that had not ended then have other coordinators here: some have ended
    since under their own names, by which nothing of them is applied any more.

    Attributes:
        data: The ledgers of data, which nobody reads yet; None to keep those there are.
        closures: Functions that had not ended, and what was applied of them.
    """

    data: Sequence[DataLedger] | None
    closures: Mapping[bytes, Space]

    def replace(self, data: DataLedgers, closures: ClosureLedger) -> None:
        """Puts them in place of what a server has."""
        if self.data is not None:
            data.replace(self.data)
        closures.adopt(self.closures)


def read_accounts(request: StageVariablesRequest, task: int) -> Accounts:
    """Reads what a request asks for.

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
