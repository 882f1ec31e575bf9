"""A call that is answered by a stream, message by message, at the pace of who reads it."""

from __future__ import annotations

import asyncio

import grpc

from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.wire.status import CallError
from tests.simulation.network import Network, Sent
from tests.simulation.server_run import ServedCall
from tests.simulation.servers import SimulatedServer

# Messages on their way that nobody has read, for which the server waits.
_WINDOW = 2


class _StreamingCall(ServedCall):
    """What a handler writes its messages to."""

    def __init__(self, stream: StreamedCall) -> None:
        super().__init__(None)
        self._stream = stream

    async def write(self, message: bytes) -> None:
        """Send a message, once there is room for it."""
        await self._stream.sent(message)


class StreamedCall:
    """One call, whose messages come one after the other.

    Args:
        network: Carries it.
        caller: Who calls.
        server: Whom.
        sent: What is sent.
    """

    def __init__(self, network: Network, caller: str, server: SimulatedServer, sent: Sent) -> None:
        self._network, self._world = network, network.world
        self._caller, self._server, self._sent = caller, server, sent
        self._run = server.run
        self._messages = asyncio.Queue[bytes | CallError | None]()
        self._room = asyncio.Semaphore(_WINDOW)
        self._deadline: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[list[bytes]] | None = None
        self._is_over = False

    def begin(self, timeout: float) -> None:
        """Send the request; all is to be answered in so many seconds."""
        world, network = self._world, self._network
        late = grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time"
        self._deadline = world.loop.call_later(timeout, self._fail, *late)
        if world.strikes("request lost", world.weather.lost):
            self._break("the request is lost")
        else:
            world.loop.call_later(network.delay("request late"), self._arrive)

    def _arrive(self) -> None:
        passes = self._network.passes(self._caller, self._server, there=True)
        if not passes or not self._server.is_up or self._server.run is not self._run:
            self._break("the network is parted" if not passes else "nobody is there")
        elif not self._is_over:
            self._note("arrives")
            call = _StreamingCall(self)
            self._task = self._run.serve(self._sent.path, self._sent.messages, None, call)
            self._task.add_done_callback(self._answered)

    async def sent(self, message: bytes) -> None:
        """Take a message of the server, once there is room."""
        await self._room.acquire()
        world, weather = self._world, self._world.weather
        if world.strikes("connection cut", weather.cut_off / 2):
            self._break("the connection is cut")
            raise asyncio.CancelledError
        if self._network.passes(self._caller, self._server, there=False):
            self._messages.put_nowait(message)

    def _answered(self, task: asyncio.Task[list[bytes]]) -> None:
        if task.cancelled():
            self._break("the connection is cut")
            return
        error = task.exception()
        self._note(f"is answered: {type(error).__name__ if error else 'OK'}")
        if not self._network.passes(self._caller, self._server, there=False):
            self._break("the reply is lost")
        else:
            self._messages.put_nowait(error if isinstance(error, CallError) else None)
            self._world.require(
                error is None or isinstance(error, CallError),
                f"{self._sent} of {self._caller} raises {error!r}",
            )

    async def next(self) -> bytes | None:
        """Return the next message; None at the end. Raises CallError if there is none."""
        message = await self._messages.get()
        self._room.release()
        if isinstance(message, CallError):
            raise message
        return message

    def end(self) -> None:
        """Read no more of it."""
        self._is_over = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self._task is not None and not self._task.done():
            self._task.cancel()

    def _break(self, why: str) -> None:
        """Tell the reader of a broken connection, soon or when it is found out."""
        self._note(why)
        if self._world.chance.random() < 0.7:
            delay = self._world.chance.random() * 0.2
            self._world.loop.call_later(delay, self._fail, grpc.StatusCode.UNAVAILABLE, why)

    def _fail(self, code: grpc.StatusCode, why: str) -> None:
        if not self._is_over:
            self._messages.put_nowait(CallError(RecordedStatus(code=code.value[0], message=why)))

    def _note(self, what: str) -> None:
        if not self._is_over:
            self._world.note(self._server.name, f"{self._sent} of {self._caller} {what}")
