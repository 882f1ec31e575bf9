"""Giving the tasks of a server that is to end to the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from stratagem_proto.errors import StratagemError
from stratagem_proto.server_log import LOG
from stratagem_proto.v1 import servers_pb2 as pb
from stratagem_proto.v1.replication_pb2 import View
from stratagem_psserver.moves.calls import OtherServers
from stratagem_psserver.moves.served_tasks import ServedTasks

# Clients that make no requests find out by their heartbeats, every 3 s, where a task is.
_FOLLOWING_SECONDS = 4.0
_POLL_SECONDS = 0.1


@dataclass
class _Taker:
    """A server that may be given tasks, and the bytes of those that it has."""

    address: str
    bytes: int


class _Given(NamedTuple):
    """A task that was given away, and the view in which another server has it."""

    task: int
    view: View


class Departure:
    """Gives what a server has to others, as long as there is time; used on the event loop.

    Args:
        served: The tasks of the server, which takes no others any more.
        others: How it calls other servers.
        seconds: How long it may take.
    """

    def __init__(self, served: ServedTasks, others: OtherServers, seconds: float) -> None:
        self._served, self._others = served, others
        self._until = time.monotonic() + seconds

    async def give_all(self) -> None:
        """Give each task to the server that then has the fewest bytes of those that take it."""
        if tasks := sorted(self._served.describe().tasks, key=lambda each: -each.bytes):
            takers = await self._takers()
            given = [each for task in tasks if (each := await self._give(task, takers))]
            await self._await_clients(given)

    async def _takers(self) -> list[_Taker]:
        """Return the other servers that take tasks."""
        try:
            views = (await self._served.locations.all()).values()
        except StratagemError as error:
            LOG.warning("cannot look for tasks", server=self._served.label, why=error.message)
            return []
        addresses = {view.primary.index: view.primary.address for view in views}
        addresses.pop(self._served.number, None)
        found = await asyncio.gather(*map(self._taker, addresses.values()))
        return [each for each in found if each is not None]

    async def _taker(self, address: str) -> _Taker | None:
        with suppress(StratagemError):
            answer = await self._others.describe(address)
            if not answer.is_draining:
                return _Taker(address, sum(task.bytes for task in answer.tasks))
        return None

    async def _give(self, task: pb.ServedTask, takers: Sequence[_Taker]) -> _Given | None:
        for taker in sorted(takers, key=lambda each: each.bytes):
            if (left := self._until - time.monotonic()) <= 0.0:
                break
            try:
                view = await self._others.take(taker.address, task.task, left)
            except StratagemError as error:
                LOG.warning("cannot give a task away", task=task.task, why=error.message)
            else:
                taker.bytes += task.bytes
                return _Given(task.task, view)
        return None

    async def _await_clients(self, given: Sequence[_Given]) -> None:
        """Wait until all clients have asked for the tasks where they are now."""
        until = min(self._until, time.monotonic() + _FOLLOWING_SECONDS)
        for each in given:
            while time.monotonic() < until and await self._has_unheard(each):
                await asyncio.sleep(_POLL_SECONDS)

    async def _has_unheard(self, given: _Given) -> bool:
        with suppress(StratagemError):
            answer = await self._others.describe(given.view.primary.address)
            return any(each.unheard for each in answer.tasks if each.task == given.task)
        return False
