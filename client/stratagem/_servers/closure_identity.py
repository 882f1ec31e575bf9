"""Which scheduled function runs here, by which servers know what it asks again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from stratagem_proto.v1.session_pb2 import ClosureIdentity, ClosureKey


class RunningClosure:
    """A scheduled function while it runs. Thread-safe.

    Args:
        identity: Its name, the same when it runs again on another worker.
    """

    def __init__(self, identity: ClosureIdentity) -> None:
        self._identity = identity
        self._mutations = Counter[str]()
        self._counting = threading.Lock()

    def next_key(self, server: str) -> ClosureKey:
        """Numbers the next of its mutations of a server.

        The numbers are the same when the function runs again, as long as it changes
        each server in the same order.
        """
        with self._counting:
            self._mutations[server] += 1
            ordinal = self._mutations[server]
        return ClosureKey(identity=self._identity, ordinal=ordinal)


_running: ContextVar[RunningClosure | None] = ContextVar(
    "stratagem_running_closure", default=None
)


@contextmanager
def running(identity: ClosureIdentity | None) -> Iterator[None]:
    """Let this thread run a function of that name; or of none, for None.

    Threads of its replicas belong to it; those that it starts itself do not.
    """
    token = _running.set(RunningClosure(identity) if identity else None)
    try:
        yield
    finally:
        _running.reset(token)


def next_closure_key(server: str) -> ClosureKey | None:
    """Number the next mutation of a server by the function that this thread runs.

    Args:
        server: The server, by whatever name it always has.

    Returns:
        None if this thread runs none.
    """
    closure = _running.get()
    return closure.next_key(server) if closure else None
