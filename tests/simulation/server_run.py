"""One run of a parameter server's process: the real handlers, on a virtual machine.

Several runs may be alive at once, also of one task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, NoReturn, TypeVar

import grpc

from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.wire.segment import Segment
from stratagem_proto.wire.status import CallError, detail_of
from stratagem_psserver.checkpoints import Saves
from stratagem_psserver.environment import Compute, Environment
from stratagem_psserver.persistence.persistence import Persistence
from stratagem_psserver.service import handlers_of
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState
from stratagem_rpc.server_call import CallMessages, ServerCall
from stratagem_rpc.socket_server.call import find_handler
from tests.simulation.world import World

Result = TypeVar("Result")

PRESENT_RUN: ContextVar[ServerRun | None] = ContextVar("run", default=None)
"""The run of a server that the present code belongs to."""


def require_alive() -> None:
    """Send nothing for a process that has ended, some of whose code is only being wound up."""
    run = PRESENT_RUN.get()
    if run is not None and run.has_ended:
        raise asyncio.CancelledError


def beside(world: World, work: Callable[[], None], give_up: Callable[[], object]) -> None:
    """Let a thread of the present run do some work; give it up if the run ends before."""
    run = PRESENT_RUN.get()

    def act() -> None:
        if run is None:
            work()
        elif not run.has_ended:
            run.work.remove(work)
            work()
        else:
            give_up()

    if run is not None and not run.has_ended:
        run.work.append(work)
    longest = 2.0 if world.strikes("slow disk", world.weather.slow_disk) else 0.02
    world.loop.call_later(world.chance.random() * longest, act)


class ServedCall(ServerCall):
    """A call under way, as its handler sees it: like one over a socket."""

    def __init__(self, segment: Segment | None) -> None:
        self.segment = segment
        self.answer: list[bytes] = []

    async def write(self, message: bytes) -> None:
        """Take one response of several."""
        self.answer.append(message)

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: tuple[tuple[str, str | bytes], ...] = (),
    ) -> NoReturn:
        """End the call with a status."""
        detail = detail_of(trailing_metadata)
        raise CallError(RecordedStatus(code=code.value[0], message=details, detail=detail))


class SimulatedCompute(Compute):
    """Works on the event loop, and lets others have their turn where a thread might."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    async def run(self, work: Callable[[], Result], nbytes: int) -> Result:
        slow = self._world.strikes("slow work", self._world.weather.slow_work)
        if slow:
            await asyncio.sleep(self._world.chance.random() * 0.05)
        result = work()
        if slow:
            await asyncio.sleep(self._world.chance.random() * 0.05)
        return result


class ServerRun:
    """A run of a process, from its start to its end.

    Args:
        world: The simulation that it is part of.
        name: The server in the trace.
        settings: Those of the server.
        served: Called after each call, and after each look for leases that have ended.

    Attributes:
        name: The server in the trace.
        state: The state of the process.
        is_up: Whether it answers calls.
        has_ended: Whether it is over.
        work: What its threads have still to do.

    Raises:
        UnavailableError: The process cannot begin.
    """

    def __init__(
        self, world: World, name: str, settings: ServerSettings, served: Callable[[], None]
    ) -> None:
        self._world, self.name, self._served = world, name, served
        self.is_up = self.has_ended = False
        self.work: list[Callable[[], None]] = []
        self._tasks: dict[asyncio.Task[Any], None] = {}
        environment = Environment(world.loop.time, world.chance.randbytes, SimulatedCompute(world))
        self.state = ServerState(settings, environment)
        # As often as a real server looks for leases that have ended.
        self._look_seconds = settings.reconnect_seconds / 4
        self._persistence: Persistence | None = None
        self._services = self._served_by()

    def _served_by(self) -> Sequence[grpc.GenericRpcHandler]:
        """Return what answers calls."""
        if self.state.settings.durability == "log":
            self._persistence = Persistence(self.state)
        return handlers_of(self.state, Saves(self.state))

    def begin(self) -> None:
        """Begin to live, and to answer calls once its log is replayed."""
        self.is_up = self._persistence is None
        self._begin(self._live())

    async def _live(self) -> None:
        if self._persistence is not None:
            await self._persistence.recover()
            self.is_up = True
            self._world.note(self.name, "has replayed its log")
        await self._end_leases()

    async def _end_leases(self) -> NoReturn:
        while True:
            await asyncio.sleep(self._look_seconds)
            for session in self.state.end_leases():
                self._world.note(self.name, f"the lease of {session.label} has ended")
            if self._persistence is not None:
                self._persistence.tend()
            self._served()

    def end(self) -> None:
        """End between two steps of whatever it does; nobody gets an answer."""
        self.is_up, self.has_ended = False, True
        tasks, self._tasks = self._tasks, {}
        for task in tasks:
            task.cancel()

    def release(self) -> None:
        """Give up the log, as the system does for a process that has ended."""
        if self._persistence is not None:
            self._persistence.release()

    def serve(
        self,
        path: str,
        messages: Sequence[bytes],
        segment: Segment | None,
        call: ServedCall | None = None,
    ) -> asyncio.Task[list[bytes]]:
        """Begin to answer a call; the task has the answer, or raises the status as an error."""
        return self._begin(self._answered(path, messages, call or ServedCall(segment)))

    def _begin(self, work: Any) -> asyncio.Task[Any]:
        # Whatever the work begins in turn belongs to this run.
        run = PRESENT_RUN.set(self)
        task: asyncio.Task[Any] = self._world.loop.create_task(work)
        PRESENT_RUN.reset(run)
        self._keep(task)
        return task

    def _keep(self, task: asyncio.Task[Any]) -> None:
        if task not in self._tasks:
            self._tasks[task] = None
            task.add_done_callback(self._drop)

    def _drop(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if self.has_ended and not task.cancelled():
            # Nobody awaits what a process has found in its last moment.
            task.exception()

    async def _answered(
        self, path: str, messages: Sequence[bytes], call: ServedCall
    ) -> list[bytes]:
        try:
            return await answered(self._services, path, messages, call)
        finally:
            self._served()


async def answered(
    services: Sequence[grpc.GenericRpcHandler],
    path: str,
    messages: Sequence[bytes],
    call: ServedCall,
) -> list[bytes]:
    """Return the answer of a call's handler; raise the status as an error."""
    handler: Any = find_handler(services, path.encode())
    if handler.response_streaming:
        requests = _Stream(messages) if handler.request_streaming else messages[0]
        method = handler.stream_stream or handler.unary_stream
        responses = method(requests, call)
        if not hasattr(responses, "__aiter__"):
            # It writes them itself.
            await responses
            return call.answer
        async with aclosing(responses):
            async for response in responses:
                await call.write(response)
    elif handler.request_streaming:
        call.answer.append(await handler.stream_unary(_Stream(messages), call))
    else:
        call.answer.append(await handler.unary_unary(messages[0], call))
    return call.answer


class _Stream(CallMessages):
    """Messages that are all there."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self._messages = iter(messages)

    async def __anext__(self) -> bytes:
        for message in self._messages:
            return message
        raise StopAsyncIteration
