"""The route to one parameter server, by which attempts of requests reach it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator

from stratagem._ps_client.requests.request import Request, Result
from stratagem._ps_client.traffic import TrafficMeter
from stratagem._ps_client.transports.call import Attempt, Call, Style
from stratagem._ps_client.transports.server_transport import ServerTransport
from stratagem_proto.errors import CancelledError, ForkedProcessError, SessionLostError
from stratagem_proto.protocol import CHUNK_BYTES
from stratagem_proto.v1.session_pb2 import FrameSockets
from stratagem_proto.wire.channel import Deadlines
from stratagem_proto.wire.segment import Segment

_LOG = logging.getLogger("stratagem")


class ServerRoute:
    """Sends attempts to one server, wherever it is now. Thread-safe.

    Nothing is sent before the first attempt.

    Attributes:
        peer: The server and its first address, as errors and the log call it.
        meter: Counts the bytes that pass.
        closed: Set once nothing can be sent any more.
    """

    def __init__(self, task: int, address: str, locate: Callable[[], str] | None = None) -> None:
        self._task = f"/job:ps/task:{task}"
        self.peer = f"{self._task} at {address}"
        self.meter = TrafficMeter()
        self.closed = threading.Event()
        self._locate = locate
        self._transport = ServerTransport(address)
        self._retired: list[ServerTransport] = []
        self._moving = threading.Lock()

    @property
    def address(self) -> str:
        """The address to which attempts go."""
        return self._transport.address

    @property
    def place(self) -> str:
        """The server, and the address to which attempts go."""
        return f"{self._task} at {self.address}"

    @property
    def way(self) -> str:
        """How attempts go: "unix", "tcp" or "grpc"."""
        return self._transport.way

    def learn(self, sockets: FrameSockets) -> None:
        """Use the sockets that the server has told of, where possible."""
        self._transport.learn(sockets)

    def find(self) -> None:
        """Look where the server is after it could not be reached."""
        if self._locate is not None:
            self.move(self._locate())

    def move(self, address: str) -> None:
        """Send attempts to another address from now on, unless it is empty."""
        with self._moving:
            if address in ("", self.address) or self.closed.is_set():
                return
            _LOG.warning("%s is looked for at %s from now on", self.peer, address)
            # Other threads may still wait there, each until its own call fails.
            self._transport.retire()
            self._retired.append(self._transport)
            self._transport = ServerTransport(address)

    def attempt(
        self, request: Request[Result], deadlines: Deadlines, style: Style = Style.SENT
    ) -> Attempt:
        """Send a stamped request once."""
        self.require_open()
        sent = request.request_nbytes
        nbytes = sent + request.response_nbytes
        if request.response_nbytes > CHUNK_BYTES:
            style = Style.SENT

        def encode(segment: Segment | None) -> Iterator[bytes]:
            placed = 0 if segment is None else sent
            return self.meter.sending(request.encoded(segment), placed)

        call = Call(
            request.path,
            encode,
            deadlines.attempt(nbytes, request.wait),
            uploads=request.is_stream,
            downloads=request.response_nbytes > 0,
            style=style,
            room=request.room,
        )
        try:
            attempt = self._transport.send(call, control=request.opens)
        except ValueError:
            # What grpc raises where another thread has closed the channel.
            self.require_open()
            raise
        attempt.responses.received = self.meter.received
        return attempt

    def require_open(self) -> None:
        """Raise `CancelledError` if somebody has closed the route."""
        if self.closed.is_set():
            raise closed_error(self.peer)

    def trim(self) -> None:
        """Free shared memory that was not used since the last call."""
        self._transport.trim()

    def close(self) -> None:
        """Fail all attempts, those under way and those to come."""
        self.closed.set()
        with self._moving:
            for transport in (*self._retired, self._transport):
                transport.close()


def closed_error(peer: str) -> CancelledError:
    """Return the error of a connection that somebody has closed."""
    return CancelledError(f"the connection to {peer} is closed; make a new strategy")


def forked_error(peer: str, process: int) -> ForkedProcessError:
    """Return the error of a connection that this process got by a fork."""
    return ForkedProcessError(
        f"the connection to {peer} belongs to process {process}, "
        f"but process {os.getpid()} was forked from it and uses it; gRPC does "
        "not survive a fork. Keep strategies and variables out of the child, "
        "or start it otherwise, for instance by DataLoader(multiprocessing_"
        'context="forkserver")'
    )


def restarted_error(peer: str) -> SessionLostError:
    """Return the error of a connection whose server has lost its memory."""
    return SessionLostError(
        f"{peer} was restarted, and the variables that it hosted are "
        "gone. Start the program again, or restore a checkpoint"
    )
