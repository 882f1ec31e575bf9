"""The watch over servers with replicas, one of which may stop without a sign."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from stratagem_proto.errors import StratagemError

_LOOK_SECONDS = 0.25


class WatchedConnection(Protocol):
    """A connection to a task, as far as the watch needs to know it."""

    @property
    def is_replicated(self) -> bool:
        """Whether the task has replicas."""

    def follow(self) -> None:
        """Go to another replica if the present one answers nothing and that one serves.

        Raises:
            StratagemError: The server could not be reached.
        """


class PrimaryWatch:
    """The thread that sees that a primary answers no more, and that another one serves.

    The heartbeat cannot: it waits itself for the server that is silent.
    """

    def __init__(self, connections: Sequence[WatchedConnection]) -> None:
        self._connections = [each for each in connections if each.is_replicated]
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start it, if a server has replicas; may be called once."""
        if self._connections:
            threading.Thread(target=self._run, name="stratagem-primaries", daemon=True).start()

    def stop(self) -> None:
        """Stop it; do not wait for a look under way."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            for connection in self._connections:
                # Failures are left to the next request, which reports them.
                with suppress(StratagemError):
                    connection.follow()
