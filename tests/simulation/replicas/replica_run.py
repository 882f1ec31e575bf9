"""One run of a replica's process, which may stand still for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import grpc

from stratagem_proto.v1.replication_pb2 import View
from stratagem_psserver.replicated_service import ReplicatedService
from stratagem_psserver.replication.arbiter import Arbiter
from stratagem_psserver.replication.exchange import Channel, Peers
from stratagem_psserver.settings import ServerSettings
from tests.simulation.server_run import PRESENT_RUN, ServedCall, ServerRun
from tests.simulation.virtual_loop import Piece
from tests.simulation.world import World

# Answers of these tell of no change.
_UNTOLD = {"Heartbeat", "AttendSession", "GetStatus"}

Hearing = Callable[[str, float], None]
"""Hears of the method of each answer that is given to a client, and when it was allowed."""


class ReplicaRun(ServerRun):
    """A run of a replica.

    Args:
        world: The simulation that it is part of.
        name: The replica in the trace, and its address.
        settings: Those of the server.
        served: Called after each call, and after each look for leases that have ended.
        arbiter: How it reaches the arbiter.
        peers: How it reaches the other replica.
        hears: Hears of its answers.
    """

    def __init__(
        self,
        world: World,
        name: str,
        settings: ServerSettings,
        served: Callable[[], None],
        reached: tuple[Arbiter, Peers],
        hears: Hearing,
    ) -> None:
        self._reached, self._hears = reached, hears
        # Until when it stands still, and from when to when it did last.
        self._stands_until = self._stood_from = self._goes_on_from = -1.0
        self._held: list[Piece] = []
        super().__init__(world, name, settings, served)

    def _served_by(self) -> Sequence[grpc.GenericRpcHandler]:
        self.replicated = ReplicatedService(self.state, *self._reached, lambda: None)
        return self.replicated.handlers

    def begin(self) -> None:
        """Begin to live, and to take part once its log is replayed."""
        self._begin(self._live())

    async def _live(self) -> None:
        await self.replicated.recover()
        self.is_up = True
        self.replicated.begin(self.name)
        await self._end_leases()

    async def _end_leases(self) -> NoReturn:
        while True:
            await asyncio.sleep(self._look_seconds)
            self.state = self.replicated.state
            for session in self.state.end_leases():
                self._world.note(self.name, f"the lease of {session.label} has ended")
            self.replicated.tend()
            self._served()

    def end(self) -> None:
        """End between two steps of whatever it does, also of what nobody waits for."""
        super().end()
        self._go_on()

    def release(self) -> None:
        """Give up the log."""
        self.replicated.release()

    def answer(self, call: Channel[Any, Any]) -> asyncio.Task[None]:
        """Begin to answer a replica that wants to follow this one."""
        return self._begin(self.replicated.answer(call))

    def take_over(self, seconds: float) -> asyncio.Task[View]:
        """Begin to have the task move to this process."""
        return self._begin(self.replicated.take_over(seconds))

    def leave(self) -> asyncio.Task[None]:
        """Begin to leave the task to the other replica."""
        return self._begin(self.replicated.leave())

    async def _answered(
        self, path: str, messages: Sequence[bytes], call: ServedCall
    ) -> list[bytes]:
        answer = await super()._answered(path, messages, call)
        method = path.rpartition("/")[2]
        if method not in _UNTOLD:
            # What a process does in the moment in which it goes on was allowed before it stood.
            now = self._world.loop.time()
            self._hears(method, self._stood_from if now == self._goes_on_from else now)
        return answer

    def own(self, task: asyncio.Task[Any]) -> None:
        """Have a task end with this run."""
        if not self.has_ended:
            self._keep(task)

    def stand_still(self, seconds: float) -> None:
        """Let none of its code run for a while."""
        loop = self._world.loop
        if not self.stands_still:
            self._stood_from = loop.time()
            loop.hold(self._holds)
        self._stands_until = loop.time() + seconds
        loop.call_later(seconds, self._go_on)

    @property
    def stands_still(self) -> bool:
        """Whether none of its code runs."""
        return self._stands_until >= 0

    def _go_on(self) -> None:
        now = self._world.loop.time()
        if self.stands_still and (now >= self._stands_until or self.has_ended):
            self._stands_until, self._goes_on_from = -1.0, now
            held, self._held = self._held, []
            self._world.loop.go_on(self._holds, held)

    def _holds(self, piece: Piece) -> bool:
        """Keep a piece of its code for later."""
        is_its = piece.context.get(PRESENT_RUN) is self
        if is_its:
            self._held.append(piece)
        return is_its


def own(task: asyncio.Task[Any]) -> None:
    """Have a task end with the run of the replica that has begun it."""
    run = PRESENT_RUN.get()
    if isinstance(run, ReplicaRun):
        run.own(task)
