"""Parameter servers of a simulation: the real handlers, on a virtual machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NoReturn, TypeVar

import grpc

from stratagem_proto.sockets.client.errors import SocketError
from stratagem_proto.sockets.server.call import find_handler
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.wire.status import detail_of
from stratagem_psserver.checkpoints.saving import Saves
from stratagem_psserver.environment import Environment
from stratagem_psserver.process import Compute
from stratagem_psserver.servicer import (
    checkpoint_handler,
    closure_handler,
    data_handler,
    service_handler,
)
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState
from tests.simulation.world import World

LEASE_SECONDS, RECONNECT_SECONDS = 10.0, 4.0
# As often as a real server looks for leases that have ended.
_LOOK_SECONDS = RECONNECT_SECONDS / 4

Result = TypeVar("Result")


class ServedCall:
    """A call under way, as its handler sees it: like one over a socket."""

    segment = None

    def __init__(self) -> None:
        self.answer: list[bytes] = []

    async def write(self, message: bytes) -> None:
        """Take one response of several."""
        self.answer.append(message)

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Sequence[tuple[str, str | bytes]] = (),
    ) -> NoReturn:
        """End the call with a status."""
        detail = detail_of(trailing_metadata)
        raise SocketError(RecordedStatus(code=code.value[0], message=details, detail=detail))


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


class SimulatedServer:
    """One server, which can end at any moment and start anew.

    Attributes:
        name: Its name in the trace.
        settings: Those of the server.
        state: The state of the present run of the process, or of the last one.
        is_up: Whether the process runs.
        runs: How often it was started.
        served: Called after each call, and after each look for leases that have ended.
    """

    def __init__(self, world: World, task: int) -> None:
        self.name = f"ps:{task}"
        self.settings = ServerSettings(
            task=task, lease_seconds=LEASE_SECONDS, reconnect_seconds=RECONNECT_SECONDS
        )
        self.served: Callable[[], None] = lambda: None
        self._world = world
        self._running: dict[asyncio.Task[Any], None] = {}
        self.runs = 0
        self.start()

    def start(self) -> None:
        """Begin a run of the process; whatever a run before knew is gone."""
        world, self.is_up = self._world, True
        self.runs += 1
        environment = Environment(world.loop.time, world.chance.randbytes, SimulatedCompute(world))
        self.state = ServerState(self.settings, environment)
        self._services = [
            service_handler(self.state),
            checkpoint_handler(self.state, Saves(self.state)),
            closure_handler(self.state),
            data_handler(self.state),
        ]
        self._begin(self._end_leases())
        world.note(self.name, "starts")

    def stop(self) -> None:
        """End the run between two steps of whatever it does; nobody gets an answer."""
        self.is_up = False
        running, self._running = self._running, {}
        for task in running:
            task.cancel()
        self._world.note(self.name, "stops")

    def serve(self, path: str, messages: Sequence[bytes]) -> asyncio.Task[list[bytes]]:
        """Begin to answer a call; the task has the answer, or raises the status as an error."""
        return self._begin(self._answered(path, messages))

    def _begin(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = self._world.loop.create_task(work)
        self._running[task] = None
        task.add_done_callback(lambda done: self._running.pop(done, None))
        return task

    async def _answered(self, path: str, messages: Sequence[bytes]) -> list[bytes]:
        handler: Any = find_handler(self._services, path.encode())
        call = ServedCall()
        try:
            if handler.response_streaming:
                requests = _stream(messages) if handler.request_streaming else messages[0]
                method = handler.stream_stream or handler.unary_stream
                async for response in method(requests, call):
                    call.answer.append(response)
            elif handler.request_streaming:
                call.answer.append(await handler.stream_unary(_stream(messages), call))
            else:
                call.answer.append(await handler.unary_unary(messages[0], call))
        finally:
            self.served()
        return call.answer

    async def _end_leases(self) -> NoReturn:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for session in self.state.end_leases():
                self._world.note(self.name, f"the lease of {session.label} has ended")
            self.served()


async def _stream(messages: Sequence[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message
