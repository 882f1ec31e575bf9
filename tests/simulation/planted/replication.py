"""Faults of replicas, planted into the real code, which the simulation has to find."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from stratagem_proto.v1.replication_pb2 import Replica, View
from stratagem_psserver.exactly_once.mutations import LogEntry
from stratagem_psserver.log.changes import LoggedRequest
from stratagem_psserver.replication import replica
from stratagem_psserver.replication.backup import Backup
from stratagem_psserver.replication.backup_link import BackupLink
from stratagem_psserver.replication.exchange import Arrival, Lease
from stratagem_psserver.replication.primary import Primary
from stratagem_psserver.replication.replica import ReplicatedTask
from stratagem_psserver.replication.standby import Standby
from stratagem_psserver.replication.views import alone
from stratagem_psserver.state import ServerState
from tests.simulation.planted.plant import Plant, replaced

# By then a backup may take over from a primary that has ended.
_LATE_SECONDS = 6.0

_may_answer, _add, _finish = Primary._may_answer, Standby.add, Standby.finish
_own_state, _follow = ReplicatedTask._own_state, ReplicatedTask._follow


def _answers_always(self: Primary, position: int) -> bool:
    """Answer whether or not the backup may lead by now."""
    return True


def _answers_early(self: Primary, position: int) -> bool:
    """Answer before the backup has the record."""
    return _may_answer(self, 0)


def _is_long(self: Lease, now: float) -> bool:
    """Answer for longer than the backup waits."""
    return now < self._until + 2 * self._seconds


def _names_everybody(view: View, one: Replica) -> bool:
    """Take over from a primary that is silent although the view names no backup."""
    return True


async def _leads_unasked(self: ReplicatedTask, view: View) -> None:
    """Lead once the primary is silent, whatever the arbiter says."""
    await _follow(self, view)
    if self._backup.standby is not None and self._backup.is_silent:
        await self._lead(alone(view, self.replica))


def _applies_late(self: Standby, arrivals: Sequence[Arrival]) -> None:
    """Apply records some seconds after they have come, as a busy backup does."""
    if self._disk is not None:
        _add(self, arrivals)
        return
    self.position = max(self.position, arrivals[-1].record.position)
    self.__dict__.setdefault("late", []).append(arrivals)
    asyncio.get_running_loop().call_later(_LATE_SECONDS, _apply_next, self)


def _apply_next(self: Standby) -> None:
    if late := self.__dict__["late"]:
        _add(self, late.pop(0))


async def _forgets_records(self: Standby) -> None:
    """Do not apply what has come and is not applied yet."""
    self.__dict__.setdefault("late", []).clear()
    self._records.clear()
    await _finish(self)


@contextmanager
def _forgetting_records() -> Iterator[None]:
    with (
        patch.object(Standby, "add", _applies_late),
        patch.object(Standby, "finish", _forgets_records),
    ):
        yield


async def _takes_for_acknowledged(self: Primary, link: BackupLink, position: int) -> bool:
    """Take a backup for one that has what was answered without it."""
    return True


@contextmanager
def _taking_on_early() -> Iterator[None]:
    """Take a backup into the view as soon as it comes."""
    with (
        patch.object(Primary, "_can_take_on", lambda self, link: True),
        patch.object(Primary, "_acknowledges", _takes_for_acknowledged),
    ):
        yield


async def _keeps_state(self: ReplicatedTask) -> ServerState:
    """Serve what this process had when it was the primary before."""
    former: ServerState | None = self.__dict__.get("former")
    state = await _own_state(self)
    if former is not None:
        self._host.adopt(former)
        state = former
    self.__dict__["former"] = state
    return state


def _seems_silent(self: Backup) -> bool:
    """Take over without waiting for the lease of the primary."""
    return True


_forget, _make, _withdraw = Primary._log_if_needed, LogEntry.__init__, Backup.withdraw


def _forgets_that_it_is_over(self: Primary) -> None:
    """Answer what is applied after the task has moved away."""
    if self._is_over:
        self._is_over, self._required = False, None
    _forget(self)


def _decides_early(self: LogEntry, make: Callable[[], LoggedRequest | None] = lambda: None) -> None:
    """Decide when a request arrives whether it is recorded, and not when its turn has come."""
    early = make()
    _make(self, lambda: early)


async def _acknowledges_anything(self: Primary, link: BackupLink, position: int) -> bool:
    """Hand the task over to a server that lacks what was answered."""
    return link is self._link


async def _takes_for_living(self: Primary, link: BackupLink) -> bool:
    """Hand the task over to a server that may have vanished since it was heard."""
    return True


def _answers_alone(self: Primary, position: int) -> bool:
    """Do not wait for the server that is about to take the task."""
    return not self._is_fenced


def _forgets_at_once(self: Backup) -> None:
    """Forget the state when the move takes too long, though the next view may name it."""
    _withdraw(self)
    self.discard()


@contextmanager
def _losing_at_the_handover() -> Iterator[None]:
    with (
        patch.object(Primary, "_acknowledges", _acknowledges_anything),
        patch.object(Primary, "_may_answer", _answers_alone),
    ):
        yield


FAULTS_OF_MOVES: Mapping[str, Plant] = {
    "a server answers although the task has moved away": replaced(
        Primary, "_log_if_needed", _forgets_that_it_is_over
    ),
    "requests are not recorded that wait while a server begins to follow": replaced(
        LogEntry, "__init__", _decides_early
    ),
    "the task is handed over to a server that has vanished": replaced(
        Primary, "_is_there", _takes_for_living
    ),
    "what was answered is lost at the handover": _losing_at_the_handover,
    "a server that gives a move up forgets what it has": replaced(
        Backup, "withdraw", _forgets_at_once
    ),
}

FAULTS: Mapping[str, Plant] = {
    "the fence is missing": replaced(Primary, "_may_answer", _answers_always),
    "an answer leaves before the backup has its record": replaced(
        Primary, "_may_answer", _answers_early
    ),
    "a lease is longer than the backup waits": replaced(Lease, "is_valid", _is_long),
    "a replica takes over that no view names": replaced(replica, "is_backup", _names_everybody),
    "a backup leads unasked": replaced(ReplicatedTask, "_follow", _leads_unasked),
    "a backup takes over before the lease is over": lambda: patch.object(
        Backup, "is_silent", property(_seems_silent)
    ),
    "records are forgotten in a takeover": _forgetting_records,
    "a backup is in the view too early": _taking_on_early,
    "a former primary keeps its state": replaced(ReplicatedTask, "_own_state", _keeps_state),
}
