"""The names by which servers tell processes and scheduled functions apart."""

from __future__ import annotations

import os
import secrets
import threading
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import lru_cache

from stratagem._core.contexts import ContextVarScope
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.v1.session_pb2 import ClosureIdentity, ClosureKey


def process_name() -> bytes:
    """Return random bytes that name this process; those of a forked child are others."""
    return _name_of(os.getpid())


@lru_cache(maxsize=1)
def _name_of(process: int) -> bytes:
    return secrets.token_bytes(SESSION_ID_BYTES)


class RunningClosure:
    """A scheduled function while it runs. Thread-safe."""

    def __init__(self, identity: ClosureIdentity) -> None:
        self._identity = identity
        self._mutations: dict[str, int] = {}
        self._counting = threading.Lock()

    def next_key(self, server: str) -> ClosureKey:
        """Number the next of its mutations of a server.

        The numbers are the same when the function runs again, as long as it changes each server in
        the same order.
        """
        with self._counting:
            ordinal = self._mutations.get(server, 0) + 1
            self._mutations[server] = ordinal
        return ClosureKey(identity=self._identity, ordinal=ordinal)


_running: ContextVar[RunningClosure | None] = ContextVar("stratagem_running_closure", default=None)


def running(identity: ClosureIdentity | None) -> AbstractContextManager[None]:
    """Let this thread run a function of that name; or of none, for None.

    Threads of its replicas belong to it; those that it starts itself do not.
    """
    return ContextVarScope(_running, RunningClosure(identity) if identity else None)


def is_running() -> bool:
    """Return whether this thread runs a scheduled function."""
    return _running.get() is not None


def next_closure_key(server: str) -> ClosureKey | None:
    """Number the next mutation of a server by the function that this thread runs, if any."""
    closure = _running.get()
    return closure.next_key(server) if closure else None
