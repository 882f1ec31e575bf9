"""The thread that sees to it that a worker is connected."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from stratagem._coordinator.workers.remote_worker import RemoteWorker
from stratagem._core.waiting import Wait
from stratagem_proto.errors import StratagemError, UnavailableError

_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class Events:
    """What an attendant tells.

    Attributes:
        ready: Called with each new connection.
        refused: Called with the error of a worker that is there but cannot be used.
        missed: Called with the error of one that is not there, at each attempt.
    """

    ready: Callable[[Attendant, RemoteWorker], None]
    refused: Callable[[Attendant, StratagemError], None]
    missed: Callable[[Attendant, StratagemError], None]


class Attendant:
    """Connects to one worker, again whenever it was lost. Spec: FLT-2, FLT-4, FLT-12.

    Args:
        index: The worker's.
        address: Its "host:port".
        connect: Connects.
        events: What to call.

    Attributes:
        index: The worker's.
    """

    def __init__(
        self, index: int, address: str, connect: Callable[[], RemoteWorker], events: Events
    ) -> None:
        self.index = index
        self._address = address
        self._connect = connect
        self._events = events
        self._closed = False
        self._seeking = self._new_wait()
        # Of this kind because the garbage collector may call `close` anywhere.
        self._news: SimpleQueue[bool] = SimpleQueue()

    def start(self, delay: float) -> None:
        """Start the thread.

        Args:
            delay: Seconds until it connects first.
        """
        name = f"stratagem-worker-{self.index}"
        threading.Thread(target=self._run, args=(delay,), name=name, daemon=True).start()

    def reconnect(self) -> None:
        """Let the thread give up the connection and make another one."""
        self._news.put(False)

    def close(self) -> None:
        """Let the thread give up the connection and end."""
        self._news.put(True)
        # The attempt under way may last.
        self._seeking.end()

    def _run(self, delay: float) -> None:
        self._wait(delay)
        while worker := self._connected():
            self._events.ready(self, worker)
            self._wait()
            worker.close()

    def _connected(self) -> RemoteWorker | None:
        with self._new_wait() as self._seeking:
            return self._sought()

    def _new_wait(self) -> Wait:
        return Wait("the coordinator", f"/job:worker/task:{self.index} at {self._address}")

    def _sought(self) -> RemoteWorker | None:
        pause = _PAUSE_SECONDS
        while not self._closed:
            try:
                return self._connect()
            except UnavailableError as error:
                self._events.missed(self, error)
            except StratagemError as error:
                self._events.refused(self, error)
            self._wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return None

    def _wait(self, seconds: float | None = None) -> None:
        with suppress(Empty):
            self._closed |= self._news.get(timeout=seconds)
