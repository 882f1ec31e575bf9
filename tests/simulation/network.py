"""The network of a simulation: it delivers calls, or does what networks do instead."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import grpc

from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.wire.status import CallError
from tests.simulation.servers import SimulatedServer
from tests.simulation.shared_segment import SharedSegment
from tests.simulation.world import World

_QUICK_SECONDS, _LATE_SECONDS = 0.01, 8.0


# The tensors of these are not needed in shared memory any more when they are answered, nor are
# values of the answer there.
_UPLOADS = {"Assign", "Update"}


class Sent(NamedTuple):
    """One attempt of a call.

    Attributes:
        path: The method.
        messages: The messages, as bytes.
        segment: The memory that it shares with the server, in which tensors are; None if there is
            none.
    """

    path: str
    messages: Sequence[bytes]
    segment: SharedSegment | None = None

    def __str__(self) -> str:
        return self.path.rpartition("/")[2]

    def overwrite(self) -> None:
        """Overwrite what the server has read; before, that would make another request of it."""
        assert self.segment is not None
        if self.segment.is_read:
            self.segment.view(0, self.segment.nbytes)[:] = b"B" * self.segment.nbytes


class Place(Protocol):
    """Where messages go to.

    Attributes:
        name: Its name.
    """

    name: str


class Network:
    """Carries calls to servers. Whoever calls, a client or a server, has a name of its own.

    Attributes:
        world: The run that it is part of.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        # By caller, server and whether it is the way there: until when nothing passes.
        self._parted: dict[tuple[str, str, bool], float] = {}

    def part(self, caller: str, server: str, there: bool, back: bool, seconds: float) -> None:
        """Let nothing pass between two for a while, in one direction or both."""
        until = self.world.loop.time() + seconds
        for way, parted in ((True, there), (False, back)):
            if parted:
                self._parted[caller, server, way] = until

    def passes(self, caller: str, server: Place, there: bool) -> bool:
        """Return whether messages pass in one direction."""
        return self._parted.get((caller, server.name, there), 0.0) <= self.world.loop.time()

    async def call(
        self, caller: str, server: SimulatedServer, sent: Sent, timeout: float | None
    ) -> list[bytes]:
        """Return the messages of the answer.

        Raises:
            CallError: The call failed, or was not answered in time.
        """
        return await self.begin(caller, server, sent, timeout).outcome()

    def begin(
        self, caller: str, server: SimulatedServer, sent: Sent, timeout: float | None
    ) -> Delivery:
        """Begin a call, which whoever begins it also ends."""
        delivery = Delivery(self, caller, server, sent)
        delivery.begin(timeout)
        return delivery

    def delay(self, fault: str) -> float:
        """Return how long a message takes; a late one is counted as a fault."""
        if self.world.strikes(fault, self.world.weather.late):
            return self.world.chance.random() * _LATE_SECONDS
        return self.world.chance.random() * _QUICK_SECONDS


class Delivery:
    """One attempt of a call on its way.

    Args:
        network: Carries it.
        caller: Who calls.
        server: Whom.
        sent: What is sent.

    Attributes:
        answer: Gets the messages of the answer, or the error.
        began: When it was sent.
    """

    def __init__(self, network: Network, caller: str, server: SimulatedServer, sent: Sent) -> None:
        world = network.world
        self._network, self._world = network, world
        self._caller, self._server, self._sent = caller, server, sent
        # What is on its way to a process ends with its connections.
        self._run = server.run
        self.answer: asyncio.Future[list[bytes]] = world.loop.create_future()
        self.began = world.loop.time()
        self._deadline: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[list[bytes]]] = []

    def begin(self, timeout: float | None) -> None:
        """Send the request; it is to be answered in so many seconds, if there are any."""
        world, network = self._world, self._network
        if timeout is not None:
            # As `asyncio.wait_for`, which would have each answer pass through three turns more.
            late = grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time"
            self._deadline = world.loop.call_later(timeout, self.fail, *late)
        if world.strikes("request lost", world.weather.lost):
            self._break("the request is lost")
        else:
            world.loop.call_later(network.delay("request late"), self._arrive)
        # Nothing comes between two processes of one host.
        is_far = self._sent.segment is None
        if is_far and world.strikes("request doubled", world.weather.doubled):
            later = world.chance.random() * _LATE_SECONDS
            world.loop.call_later(later, self._arrive, True)

    async def outcome(self) -> list[bytes]:
        """Return the messages of the answer; raise as `Network.call`. The call is then over."""
        try:
            return await self.answer
        finally:
            self.end()

    def end(self) -> None:
        """Wait no more; the server may hear of that."""
        # Nobody asks any more for an error that comes with the end of whoever waits.
        _ = self.answer.cancel() or self.answer.cancelled() or self.answer.exception()
        if self._deadline is not None:
            self._deadline.cancel()
        delay = self._network.delay("end of a call late")
        for task in self._tasks:
            if not task.done():
                self._world.loop.call_later(delay, task.cancel)

    def _arrive(self, again: bool = False) -> None:
        passes = self._network.passes(self._caller, self._server, there=True)
        # What goes by a proxy may arrive at a later run all the same, when nobody waits for it.
        is_there = self._server.is_up and (again or self._server.run is self._run)
        if not passes or not is_there:
            if not again:
                self._break("the network is parted" if not passes else "nobody is there")
            return
        self._note("arrives again" if again else "arrives")
        task = self._server.run.serve(*self._sent)
        self._tasks.append(task)
        self._overwrite()
        task.add_done_callback(self._doubled if again else self._answered)
        weather = self._world.weather
        if not again and self._world.strikes("connection cut", weather.cut_off):
            self._world.loop.call_later(self._world.chance.random() * 0.1, task.cancel)

    def _overwrite(self) -> None:
        """Overwrite shared memory while the server works, which has to be safe from that.

        Servers without logs do not care what such a client so makes of its own request.
        """
        world, sent = self._world, self._sent
        if sent.segment is None or str(sent) not in _UPLOADS or not self._server.copies:
            return
        if world.strikes("memory overwritten", world.weather.overwritten):
            world.loop.call_later(world.chance.choice((0.0, 0.03, 1.0)), sent.overwrite)

    def _doubled(self, task: asyncio.Task[list[bytes]]) -> None:
        if not task.cancelled():
            task.exception()  # nobody waits for the answer

    def _answered(self, task: asyncio.Task[list[bytes]]) -> None:
        world = self._world
        if task.cancelled():
            return self._break("the connection is cut")
        error = task.exception()
        self._note(f"is answered: {type(error).__name__ if error else 'OK'}")
        parted = not self._network.passes(self._caller, self._server, there=False)
        if parted or world.strikes("reply lost", world.weather.reply_lost):
            return self._break("the reply is lost")
        world.loop.call_later(self._network.delay("reply late"), self._return, task)

    def _return(self, task: asyncio.Task[list[bytes]]) -> None:
        if self.answer.done():
            return
        error = task.exception()
        if error is None:
            self.answer.set_result(task.result())
        else:
            self.answer.set_exception(error)

    def _break(self, why: str) -> None:
        """Tell the client of a broken connection, soon or when it is found out."""
        self._note(why)
        if self._world.chance.random() < 0.7:
            delay = self._world.chance.random() * 0.2
            self._world.loop.call_later(delay, self.fail, grpc.StatusCode.UNAVAILABLE, why)

    def fail(self, code: grpc.StatusCode, why: str) -> None:
        """Have the client see an error, unless it has an answer."""
        if not self.answer.done():
            self.answer.set_exception(_failed(code, why))

    def _note(self, what: str) -> None:
        self._world.note(self._server.name, f"{self._sent} of {self._caller} {what}")


def _failed(code: grpc.StatusCode, why: str) -> CallError:
    return CallError(RecordedStatus(code=code.value[0], message=why))
