"""Telling servers which closures have ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from itertools import count, takewhile
from queue import SimpleQueue
from typing import NamedTuple

from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.coordination import end_closures
from stratagem_proto.errors import StratagemError
from stratagem_proto.v1.session_pb2 import ClosureIdentity

# The largest number that servers understand.
_ALL = 2**64 - 1


class Ended(NamedTuple):
    """Closures that have ended: all up to the number `through`, but for those `unended`."""

    through: int
    unended: tuple[int, ...]


class OpenClosures:
    """The closures that have not ended.

    Pure. Closures begin in the order of their numbers, some of which may be left out, and end about
    in this order: what is told of them is short.
    """

    def __init__(self) -> None:
        # In the order of their numbers.
        self._unended: dict[int, None] = {}
        self._through = 0

    def begin(self, number: int) -> None:
        """Add a closure, whose number is larger than those before."""
        self._unended[number] = None

    def end(self, number: int) -> None:
        """Take note that a closure has ended, however it did."""
        del self._unended[number]
        self._through = max(self._through, number)

    @property
    def ended(self) -> Ended:
        """What to tell: once told, a closure of it cannot be taken back."""
        through = self._through
        return Ended(through, (*takewhile(lambda one: one < through, self._unended),))

    @property
    def ended_for_good(self) -> Ended:
        """What to tell once no closure begins any more."""
        return Ended(_ALL, (*self._unended,))


class Inherited:
    """Closures of a coordinator that was lost, with which another one goes on.

    All others of it count as ended.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self._unended = set(numbers)

    def end(self, number: int) -> None:
        """Take note that a closure has ended; again does nothing."""
        self._unended.discard(number)

    @property
    def ended(self) -> Ended:
        """What to tell."""
        return Ended(_ALL, (*sorted(self._unended),))


# What ends meanwhile is told at once.
_BATCH_SECONDS = 0.05

_PAUSE_SECONDS = 1.0


class CompletionReporter:
    """Lets servers forget closures, one thread for each server. Thread-safe.

    A server that is away misses nothing: it is told all that has ended when it is back. `space`
    names the coordinator; `numbers` gives numbers to closures, and to what else workers run.
    """

    def __init__(self, servers: ServerGroup, space: bytes, numbers: count[int]) -> None:
        self.space = space
        self._servers = servers
        self._numbers = numbers
        self._open = OpenClosures()
        self._inherited: dict[bytes, Inherited] = {}
        self._changing = threading.Lock()
        self._all_reported = threading.Condition(self._changing)
        # Of this kind because the garbage collector may call `close` anywhere.
        self._news: dict[int, SimpleQueue[bool]] = {
            server: SimpleQueue() for server in servers.called
        }
        # Those that have been told all, or are about to be.
        self._idle = {*servers.called}
        # Those that have not answered that yet.
        self._behind: set[int] = set()
        self._leaving = threading.Event()

    def start(self) -> None:
        """Start the threads."""
        for server, news in self._news.items():
            name = f"stratagem-reporter-{server}"
            threading.Thread(target=self._run, args=(server, news), name=name, daemon=True).start()

    def begin(self, inherited: ClosureIdentity | None = None) -> tuple[int, ClosureIdentity]:
        """Return the number of a new closure here, and its identity."""
        with self._changing:
            number = next(self._numbers)
            if inherited is not None:
                return number, inherited
            self._open.begin(number)
        return number, ClosureIdentity(space=self.space, number=number)

    def inherit(self, space: bytes, numbers: Collection[int]) -> set[int]:
        """Take the place of a lost coordinator; return which of its closures are unfinished.

        `numbers` are those that some server takes for unfinished. From then on servers refuse what
        still comes of that coordinator.
        """
        probe = Inherited(numbers).ended
        replies = self._servers.on_all(lambda: end_closures(space, *probe))
        ended = {number for reply in replies.values() for number in reply.ended}
        with self._changing:
            inherited = self._inherited.setdefault(space, Inherited(numbers))
            for number in ended:
                inherited.end(number)
            self._tell()
        return {*numbers} - ended

    def end(self, identity: ClosureIdentity) -> None:
        """Take note that a closure has ended; do not wait."""
        with self._changing:
            own = identity.space == self.space
            unended = self._open if own else self._inherited[identity.space]
            unended.end(identity.number)
            self._tell()

    def leave(self, seconds: float) -> None:
        """Tell servers that no closure begins any more, and wait at most so many seconds.

        They then need not remember this coordinator for as long as its program lives.
        """
        with self._changing:
            if self._open.ended.through:
                self._leaving.set()
                self._tell()
            self._all_reported.wait_for(lambda: not self._behind, seconds)

    def _tell(self) -> None:
        if not self._idle:
            return  # all will be told this, too
        self._behind.update(self._news)
        waiting, self._idle = self._idle, set()
        for server in waiting:
            self._news[server].put(True)

    def close(self) -> None:
        """Let the threads end. May be called anywhere, and again."""
        for news in self._news.values():
            news.put(False)

    def _run(self, server: int, news: SimpleQueue[bool]) -> None:
        while news.get() and not self._servers.closed:
            self._leaving.wait(_BATCH_SECONDS)
            try:
                for space, ended in self._all_for(server).items():
                    request = end_closures(space, *ended)
                    self._servers.start(server, request).result()
                self._told(server)
            except StratagemError:
                time.sleep(_PAUSE_SECONDS)
                self._tell_again(server)

    def _told(self, server: int) -> None:
        with self._changing:
            if server in self._idle:
                self._behind.discard(server)
                self._all_reported.notify_all()

    def _all_for(self, server: int) -> Mapping[bytes, Ended]:
        with self._changing:
            self._idle.add(server)
            all_ended = {name: one.ended for name, one in self._inherited.items()}
            leaves = self._leaving.is_set()
            own = self._open.ended_for_good if leaves else self._open.ended
            return {self.space: own, **all_ended}

    def _tell_again(self, server: int) -> None:
        with self._changing:
            was_idle = server in self._idle
            self._idle.discard(server)
        if was_idle:
            self._news[server].put(True)
