"""Parameter servers of a simulation: the real handlers, on a virtual machine."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import grpc

from stratagem_proto.errors import UnavailableError
from stratagem_proto.log.segments import LogReader
from stratagem_proto.sockets.client.errors import SocketError
from stratagem_proto.sockets.server.call import find_handler
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.wire.segment import Segment
from stratagem_proto.wire.status import detail_of
from stratagem_psserver.checkpoints.saving import Saves
from stratagem_psserver.environment import Environment
from stratagem_psserver.persistence.persistence import Persistence
from stratagem_psserver.process import Compute
from stratagem_psserver.servicer import (
    checkpoint_handler,
    closure_handler,
    data_handler,
    service_handler,
)
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState
from tests.simulation.disk import Disk
from tests.simulation.world import World

LEASE_SECONDS, RECONNECT_SECONDS = 10.0, 4.0
# As often as a real server looks for leases that have ended.
_LOOK_SECONDS = RECONNECT_SECONDS / 4

_RESTART_SECONDS = 1.0

Result = TypeVar("Result")


PRESENT_RUN: ContextVar[tuple[SimulatedServer, int] | None] = ContextVar("run", default=None)
"""The run of a server that the present code belongs to."""


def beside(world: World, work: Callable[[], None], give_up: Callable[[], object]) -> None:
    """Let a thread of the present run do some work; give it up if the run ends before."""
    present = PRESENT_RUN.get()

    def act() -> None:
        if present is None:
            work()
        elif present[0].is_running(present[1]):
            present[0].work.remove(work)
            work()
        else:
            give_up()

    if present is not None and present[0].is_running(present[1]):
        present[0].work.append(work)
    longest = 2.0 if world.strikes("slow disk", world.weather.slow_disk) else 0.02
    world.loop.call_later(world.chance.random() * longest, act)


class ServedCall:
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

    With a disk it keeps a log there, and its next run goes on where it ended.

    Attributes:
        name: Its name in the trace.
        settings: Those of the server.
        state: The state of the present run of the process, or of the last one.
        is_up: Whether the process runs.
        runs: How often it was started.
        served: Called after each call, and after each look for leases that have ended.
        work: What threads of the present run have still to do.
    """

    def __init__(self, world: World, task: int, disk: Disk | None = None) -> None:
        self.name = f"ps:{task}"
        self._disk, self._folder = disk, disk.machine(self.name) if disk else None
        self.settings = ServerSettings(
            task=task,
            lease_seconds=LEASE_SECONDS,
            reconnect_seconds=RECONNECT_SECONDS,
            durability="none" if disk is None else "log",
            durability_folder=str(self._folder or ""),
            log_records=world.chance.choice((20, 100_000)),
        )
        self.served: Callable[[], None] = lambda: None
        self._world = world
        self._running: dict[asyncio.Task[Any], None] = {}
        self.runs = 0
        self.work: list[Callable[[], None]] = []
        self.start()

    def start(self) -> None:
        """Begin a run of the process; whatever a run before knew is gone.

        If it cannot begin, it is started again, as by a supervisor.
        """
        try:
            self._start()
        except UnavailableError as error:
            self._world.note(self.name, f"cannot start: {error.message}")
            self.is_up, self._stopped = False, True
            self._world.loop.call_later(_RESTART_SECONDS, self.start)

    def _start(self) -> None:
        world, self.is_up = self._world, True
        self.runs, self._stopped = self.runs + 1, False
        environment = Environment(world.loop.time, world.chance.randbytes, SimulatedCompute(world))
        self.state = ServerState(self.settings, environment)
        self._services = [
            service_handler(self.state),
            checkpoint_handler(self.state, Saves(self.state)),
            closure_handler(self.state),
            data_handler(self.state),
        ]
        self._persistence = None
        if self.settings.durability == "log":
            self._persistence, self.is_up = Persistence(self.state), False
        self._begin(self._live())
        world.note(self.name, "starts")

    @property
    def logs(self) -> bool:
        """Whether the server writes its changes to a log."""
        return self._folder is not None

    async def _live(self) -> None:
        if self._persistence is not None:
            await self._persistence.recover()
            self.is_up = True
            self._world.note(self.name, "has replayed its log")
        await self._end_leases()

    def stop(self) -> None:
        """End the run between two steps of whatever it does; nobody gets an answer."""
        self.is_up, self._stopped = False, True
        running, self._running = self._running, {}
        for task in running:
            task.cancel()
        if self._persistence is not None:
            self._leave()
            self._persistence.release()
            self._tear()
        self._world.note(self.name, "stops")

    def _leave(self) -> None:
        """Leave on the disk what is there when the process, or the machine, ends."""
        assert self._disk is not None and self._folder is not None
        loses_power = self._world.strikes("power loss", 0.5)
        begun = self._world.chance.choice(self.work) if self.work else None
        self.work = []
        self._disk.end(self._folder, loses_power, begun)
        self._world.note(self.name, "loses power" if loses_power else "is killed")

    def serve(
        self, path: str, messages: Sequence[bytes], segment: Segment | None
    ) -> asyncio.Task[list[bytes]]:
        """Begin to answer a call; the task has the answer, or raises the status as an error."""
        return self._begin(self._answered(path, messages, segment))

    def _tear(self) -> None:
        """Leave a part of a batch at the end of the log, which was being written."""
        segments = sorted(Path(self.settings.durability_folder).glob("*/segment-*.log"))
        if segments and self._world.chance.random() < 0.5:
            reader = LogReader(segments[-1:])
            deque(reader.records(), 0)
            with segments[-1].open("r+b") as file:
                file.seek(*((reader.tail.offset,) if reader.tail else (0, os.SEEK_END)))
                file.write(self._world.chance.randbytes(self._world.chance.randint(1, 60)))
            self._world.faults["torn log"] += 1

    def is_running(self, run: int) -> bool:
        """Return whether a run of the process has not ended."""
        return self.runs == run and not self._stopped

    def _begin(self, work: Any) -> asyncio.Task[Any]:
        # Whatever the work begins in turn belongs to this run.
        run = PRESENT_RUN.set((self, self.runs))
        task: asyncio.Task[Any] = self._world.loop.create_task(work)
        PRESENT_RUN.reset(run)
        self._running[task] = None
        task.add_done_callback(partial(self._end, self.runs))
        return task

    def _end(self, run: int, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if not self.is_running(run) and not task.cancelled():
            # Nobody awaits what a process has found in its last moment.
            task.exception()

    async def _answered(
        self, path: str, messages: Sequence[bytes], segment: Segment | None
    ) -> list[bytes]:
        handler: Any = find_handler(self._services, path.encode())
        call = ServedCall(segment)
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
            if self._persistence is not None:
                self._persistence.tend()
            self.served()


async def _stream(messages: Sequence[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message
