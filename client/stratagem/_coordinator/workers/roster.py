"""The workers of a coordinator: which belong to it, which are there, and what connects them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

from stratagem._coordinator.workers.connecting import Connector
from stratagem._coordinator.workers.remote_worker import RemoteWorker
from stratagem._core.waiting import Awaited, Wait
from stratagem_proto.errors import (
    InvalidArgumentError,
    StratagemError,
    UnavailableError,
    UnimplementedError,
)

_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class Events:
    """What an attendant calls: `ready` with each new connection, others with errors.

    `refused` is for a worker that is there but cannot be used, and `missed` is for each attempt to
    reach one that is not there.
    """

    ready: Callable[[Attendant, RemoteWorker], None]
    refused: Callable[[Attendant, StratagemError], None]
    missed: Callable[[Attendant, StratagemError], None]


class Attendant:
    """Connects to one worker, again whenever it was lost. Spec: FLT-2, FLT-4, FLT-12."""

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
        """Start the thread, which connects first after `delay` seconds."""
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
        task = f"/job:worker/task:{self.index}"
        awaited = Awaited.of(task, f"worker {self.index}", "server")
        return Wait("the coordinator", f"{task} at {self._address}", awaited=awaited)

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


_LOG = logging.getLogger("stratagem")


@dataclass
class _Member:
    """A worker that belongs to the coordinator.

    Attributes:
        attendant: Sees to its connection.
        late: Whether the others were there before.
        refused: Whether it was there but could not be used.
        known: Whether it was there, or the program knows that it was not.
        joined: Whether it was there.
    """

    attendant: Attendant
    late: bool
    refused: bool = False
    known: bool = False
    joined: bool = False


class Roster:
    """Keeps an attendant for each worker, and logs which come and go.

    Not thread-safe: its methods are called under the lock of its owner, which the events take too.

    Attributes:
        there: The connections, by index of the worker.
    """

    def __init__(self, connect: Connector, events: Events) -> None:
        self.there: dict[int, RemoteWorker] = {}
        self._connect = connect
        self._events = events
        self._members: dict[int, _Member] = {}

    @property
    def indices(self) -> Collection[int]:
        """The indices of all workers."""
        return self._members.keys()

    def add(self, index: int, address: str, delay: float, late: bool) -> None:
        """Let a worker join under a free index, and connect to it after `delay` seconds.

        `late` says that the others were there before.
        """
        connect = partial(self._connect, index, address)
        attendant = Attendant(index, address, connect, self._events)
        self._members[index] = _Member(attendant, late)
        attendant.start(delay)

    def has(self, attendant: Attendant) -> bool:
        """Return whether an attendant's worker belongs here."""
        member = self._members.get(attendant.index)
        return member is not None and member.attendant is attendant

    def require(self, index: int) -> Attendant:
        """Return the attendant of a worker; raise `InvalidArgumentError` if there is none."""
        if index not in self._members:
            raise InvalidArgumentError(
                f"the coordinator has no worker {index!r}; its workers are "
                f"{sorted(self._members) or 'none'}"
            )
        return self._members[index].attendant

    def dismiss(self, index: int) -> None:
        """Let a worker leave, and end its connection."""
        self._members.pop(index).attendant.close()
        self.there.pop(index, None)
        self._connect.forget(index)
        _LOG.info("%s has left", _name(index), extra=_facts(index, "left"))

    def close(self) -> None:
        """End all connections."""
        for member in self._members.values():
            member.attendant.close()
        self._members.clear()
        self.there.clear()

    # What attendants and connections tell.

    def welcome(self, attendant: Attendant, worker: RemoteWorker) -> bool:
        """Take a connection in; return whether the worker still belongs here."""
        if not self.has(attendant):
            return False
        index = worker.index
        self.there[index] = worker
        member = self._members[index]
        member.refused, member.known, member.joined = False, True, True
        _LOG.info("%s has joined", _name(index), extra=_facts(index, "joined"))
        return True

    def retire(self, worker: RemoteWorker) -> bool:
        """Take note that a worker is about to stop; return whether it is there."""
        index = worker.index
        if self.there.get(index) is not worker:
            return False
        message = "%s is about to stop; others run what waits there"
        _LOG.info(message, _name(index), extra=_facts(index, "retires"))
        return True

    def lose(self, worker: RemoteWorker, why: StratagemError) -> bool:
        """Let a worker be sought again; return whether it was there until now."""
        index = worker.index
        if self.there.get(index) is not worker:
            return False
        del self.there[index]
        self._members[index].attendant.reconnect()
        _LOG.warning("%s", why.message, extra=_facts(index, "lost"))
        return True

    def miss(self, attendant: Attendant, error: StratagemError) -> None:
        """Take note that a worker does not answer; say so of one never there."""
        if not self.has(attendant) or self._members[attendant.index].known:
            return
        self._members[attendant.index].known = True
        facts = _facts(attendant.index, "missing")
        _LOG.warning("%s. Until then functions wait, or others run them", error, extra=facts)

    def refuse(self, attendant: Attendant, error: StratagemError) -> bool:
        """Take note that a worker cannot be used.

        Returns:
            Whether the program is to hear of it: once, unless others can do its work; always while
            there is none.
        """
        if not self.has(attendant):
            return False
        member = self._members[attendant.index]
        if member.joined and isinstance(error, UnimplementedError):
            # While it is away, another program has got its port.
            return False
        first, member.refused = not member.refused, True
        if first and member.late:
            facts = _facts(attendant.index, "refused")
            _LOG.warning("%s cannot join: %s", _name(attendant.index), error, extra=facts)
        return (first and not member.late) or not self.there


def _facts(index: int, event: str) -> dict[str, str]:
    return {"worker": _name(index), "event": event}


def _name(index: int) -> str:
    return f"/job:worker/task:{index}"
