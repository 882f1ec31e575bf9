"""The workers of a coordinator: who belongs to it, and who is there."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from stratagem._coordinator.workers.attendant import Attendant, Events
from stratagem._coordinator.workers.remote_worker import Connect, RemoteWorker
from stratagem_proto.errors import InvalidArgumentError, StratagemError, UnimplementedError

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
    """Keeps an attendant for each worker, and logs who comes and goes.

    Not thread-safe: its methods are called under the lock of who has it, which the events take too.

    Attributes:
        there: The connections, by index of the worker.
    """

    def __init__(self, connect: Connect, events: Events) -> None:
        self.there: dict[int, RemoteWorker] = {}
        self._connect = connect
        self._events = events
        self._members: dict[int, _Member] = {}

    @property
    def indices(self) -> Collection[int]:
        """The indices of all workers."""
        return self._members.keys()

    def add(self, index: int, address: str, delay: float, late: bool) -> None:
        """Let a worker join.

        Args:
            index: Its index, which no worker has.
            address: Its "host:port".
            delay: Seconds until it is connected to.
            late: Whether the others were there before.
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
        """Return the attendant of a worker.

        Raises:
            InvalidArgumentError: No worker has that index.
        """
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
