"""The threads that tell servers which closures have ended."""

from __future__ import annotations

import threading
import time
from itertools import count
from queue import SimpleQueue

from stratagem._coordinator.unended import Ended, Unended
from stratagem._servers.closures import end_closures
from stratagem._servers.group import ServerGroup
from stratagem_proto.errors import StratagemError
from stratagem_proto.v1.session_pb2 import ClosureIdentity

# What ends meanwhile is told at once.
_BATCH_SECONDS = 0.05

_PAUSE_SECONDS = 1.0


class Acknowledging:
    """Lets servers forget closures, one thread for each server. Thread-safe.

    A server that is away misses nothing: it is told all that has ended when it is back.

    Args:
        servers: The servers.
        space: Names the coordinator.
        numbers: Gives numbers to closures, and to what else workers run.
    """

    def __init__(self, servers: ServerGroup, space: bytes, numbers: count[int]) -> None:
        self._servers = servers
        self._space = space
        self._numbers = numbers
        self._unended = Unended()
        self._changing = threading.Lock()
        # Of this kind because the garbage collector may call `close` anywhere.
        self._news: dict[int, SimpleQueue[bool]] = {
            server: SimpleQueue() for server in servers.called
        }
        # Those that have been told all, or are about to be.
        self._idle = {*servers.called}

    def start(self) -> None:
        """Starts the threads."""
        for server, news in self._news.items():
            name = f"stratagem-acknowledging-{server}"
            threading.Thread(
                target=self._run, args=(server, news), name=name, daemon=True
            ).start()

    def begin(self) -> ClosureIdentity:
        """Returns the identity of a new closure."""
        with self._changing:
            number = next(self._numbers)
            self._unended.begin(number)
        return ClosureIdentity(space=self._space, number=number)

    def end(self, number: int) -> None:
        """Takes note that a closure has ended; does not wait."""
        with self._changing:
            self._unended.end(number)
            waiting, self._idle = self._idle, set()
        for server in waiting:
            self._news[server].put(True)

    def close(self) -> None:
        """Lets the threads end. May be called anywhere, and again."""
        for news in self._news.values():
            news.put(False)

    def _run(self, server: int, news: SimpleQueue[bool]) -> None:
        while news.get() and not self._servers.closed:
            time.sleep(_BATCH_SECONDS)
            request = end_closures(self._space, *self._all_for(server))
            try:
                self._servers.start(server, request).result()
            except StratagemError:
                time.sleep(_PAUSE_SECONDS)
                self._tell_again(server)

    def _all_for(self, server: int) -> Ended:
        with self._changing:
            self._idle.add(server)
            return self._unended.ended

    def _tell_again(self, server: int) -> None:
        with self._changing:
            was_idle = server in self._idle
            self._idle.discard(server)
        if was_idle:
            self._news[server].put(True)
