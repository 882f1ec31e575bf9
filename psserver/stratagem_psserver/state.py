"""All that a server process holds, wired together."""

from __future__ import annotations

import os
import time

from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_psserver.budget import Budget
from stratagem_psserver.compute import Compute
from stratagem_psserver.ledger import Session, SessionLedger
from stratagem_psserver.locks import VariableLocks
from stratagem_psserver.mutations import Mutations
from stratagem_psserver.optimizers import Optimizers
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.store import VariableStore
from stratagem_psserver.waits import Waits


class ServerState:
    """The pure core of a server and what guards it.

    Only the event loop adds, removes or looks up variables and sessions; other
    threads only change tensors, under the locks of their variables.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.incarnation = os.urandom(SESSION_ID_BYTES)
        self.store = VariableStore()
        self.ledger = SessionLedger(settings.lease_seconds)
        self.budget = Budget(settings.staged_bytes)
        self.optimizers = Optimizers(self.store)
        self.locks = VariableLocks()
        self.waits = Waits()
        self.compute = Compute()
        self.mutations = Mutations(self.ledger, self.budget, self.waits)

    def session(self, session_id: bytes) -> Session:
        """The session of that id, with its lease renewed.

        Raises:
            SessionLostError: It is not open.
        """
        return self.ledger.session(session_id, time.monotonic())

    def owners(self, names: list[str]) -> list[str]:
        """Names under which those variables are locked: slots with their owners."""
        return [self.store.owner(name) for name in names]
