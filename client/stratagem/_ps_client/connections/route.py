"""The route to one parameter server, by which attempts of requests reach it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Protocol

from stratagem._ps_client.connections.directory import TaskDirectory
from stratagem._ps_client.connections.primary_search import PrimaryAddress, PrimarySearch
from stratagem._ps_client.requests.request import Request, Result
from stratagem._ps_client.traffic import TrafficMeter
from stratagem._ps_client.transports.call import Attempt, Call, Style
from stratagem._ps_client.transports.server_transport import ServerTransport
from stratagem_proto.errors import (
    CancelledError,
    FailedPreconditionError,
    ForkedProcessError,
    NotPrimaryError,
    SessionLostError,
    StratagemError,
)
from stratagem_proto.protocol import CHUNK_BYTES
from stratagem_proto.replica_addresses import replica_addresses
from stratagem_proto.v1.session_pb2 import FrameSockets
from stratagem_proto.wire.channel import Deadlines, Expected
from stratagem_proto.wire.segment import Segment

_LOG = logging.getLogger("stratagem")

# An answer that takes longer may never come; other replicas are asked who serves.
_PATIENCE_SECONDS = 0.5

# For so long a replica is believed that it serves and needs its time.
_TRUST_SECONDS = 1.0

# Who fails again so soon is not at a server that was only restarted, and asks where the task is.
_AGAIN_SECONDS = 2.0


class AwaitedAttempt(Protocol):
    """A request whose answer a thread waits for.

    Attributes:
        sent_at: When it was sent last, in seconds of `time.monotonic`.
    """

    sent_at: float


class ServerRoute:
    """Sends attempts to one server, wherever it is now. Thread-safe.

    Nothing is sent before the first attempt. Of a task with replicas, attempts go to the primary.

    Attributes:
        peer: The server and its first address, or those of its replicas, as errors and the log call
            it.
        meter: Counts the bytes that pass.
        closed: Set once nothing can be sent any more.
        expected: Who has to be at the address.
        awaited: What threads wait for at present.
        takeovers: How often another replica was found to serve.
        has_backup: Whether the server may end without a loss of what it has, as far as is known.
    """

    def __init__(
        self,
        task: int,
        address: str,
        directory: TaskDirectory,
        token: str = "",
    ) -> None:
        """Describe the server; send nothing.

        Args:
            task: Its index in the job ps.
            address: Its address, or those of its replicas with commas between them.
            directory: Says where it is now.
            token: The secret by which replicas are asked which one serves.
        """
        self._index, self._task = task, f"/job:ps/task:{task}"
        self.peer: str = f"{self._task} at {address}"
        self.meter: TrafficMeter = TrafficMeter()
        self.closed: threading.Event = threading.Event()
        self.awaited: set[AwaitedAttempt] = set()
        self.takeovers: int = 0
        self.has_backup: bool = True
        self._directory, self._token = directory, token
        self._epoch, self._instance = 0, b""
        self._failed_at = -_AGAIN_SECONDS
        self._looks_from, self._searches = 0.0, 0
        self._retired: list[ServerTransport] = []
        self._moving, self._finding = threading.Lock(), threading.Lock()
        self._settle(address)

    def _settle(self, address: str) -> None:
        self.listed = address
        self._replicas = replica_addresses(self._task, address)
        self.expected: Expected = Expected("ps", self._index)
        self._search = PrimarySearch(self._replicas, self._token, self.expected)
        self.transport: ServerTransport = ServerTransport(
            self._replicas[0], self._token, self.expected
        )

    @property
    def address(self) -> str:
        """The address to which attempts go."""
        return self.transport.address

    @property
    def is_replicated(self) -> bool:
        """Whether the server has replicas, of which another may serve."""
        return len(self._replicas) > 1

    @property
    def has_moved(self) -> bool:
        """Whether the task was found to be served elsewhere than where it began."""
        return self._epoch > 0 and not self.is_replicated

    @property
    def place(self) -> str:
        """The server, and the address to which attempts go."""
        return f"{self._task} at {self.address}"

    @property
    def way(self) -> str:
        """How attempts go: "unix", "tcp" or "grpc"."""
        return self.transport.way

    @property
    def is_met(self) -> bool:
        """Whether the server has told of its sockets since attempts go to it."""
        return self.transport.is_told

    def learn(self, sockets: FrameSockets) -> None:
        """Use the sockets that the server has told of, where possible."""
        self.transport.learn(sockets)

    def find(self, failed: ServerTransport | None, error: StratagemError) -> bool:
        """Look where the server is after it could not be reached.

        Args:
            failed: By which it could not; None to look whatever others have found.
            error: Why.

        Returns:
            Whether it makes sense to try again; if not, no replica serves yet.

        Raises:
            FailedPreconditionError: Another replica serves, of which there is no address.
        """
        if not self.is_replicated and not self._may_have_moved(error):
            if isinstance(error, NotPrimaryError):
                raise self._unlisted() from error
            self.move(self._directory.located())
            return True
        searches = self._searches
        with self._finding:
            if failed is not None and failed is not self.transport:
                return True
            # Another thread has looked in vain meanwhile.
            return self._searches == searches and self._find_primary(error)

    def require_all(self, replicas: int) -> None:
        """Check that there is an address of each replica of the server.

        Args:
            replicas: How many it has by its own word; 0 if it has none.

        Raises:
            FailedPreconditionError: There is one address, and there are several replicas.
        """
        if replicas > 1 and not self.is_replicated:
            raise self._unlisted()

    def _unlisted(self) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"{self.peer} is one replica of several, and the cluster has no address of the others: "
            "list all, as in 'host:port,host:port'. The resolvers of Slurm and Kubernetes know one "
            "address of each task: use TFConfigClusterResolver or SimpleClusterResolver for tasks "
            "with replicas"
        )

    def _find_primary(self, error: StratagemError) -> bool:
        if isinstance(error, NotPrimaryError) and self._is_other(error.primary):
            told = PrimaryAddress(error.primary, error.epoch)
            # It may be long ago that the replica heard of it.
            if self._follow(told):
                return True
        found = self._searched()
        if found is None:
            self.move(self._directory.located())
            # A server that serves alone comes back, if at all, where it was.
            return not self.is_replicated
        return self._follow(found) or not self.is_replicated

    def _may_have_moved(self, error: StratagemError) -> bool:
        """Return whether to ask other servers where the task is."""
        failed_at, self._failed_at = self._failed_at, time.monotonic()
        fails_again = self._failed_at - failed_at < _AGAIN_SECONDS
        return self.has_moved or fails_again or isinstance(error, NotPrimaryError)

    def _is_other(self, address: str) -> bool:
        # Replicas stay where they are, and may know each other by other names.
        is_known = address in self._replicas or not self.is_replicated
        return bool(address) and is_known and address != self.address

    def _searched(self) -> PrimaryAddress | None:
        self._searches += 1
        if not self.is_replicated:
            return self._directory.find(self._epoch)
        try:
            return self._search.find(self._epoch)
        except ValueError:
            # Another thread has closed the route, or given it other replicas.
            return None

    def look(self, now: float) -> None:
        """Go to another replica if this one leaves an answer out for long and that one serves.

        Attempts that wait here fail then, and their requests are sent there.

        Args:
            now: Seconds of `time.monotonic`.
        """
        began = min((attempt.sent_at for attempt in self.awaited.copy()), default=now)
        if now < began + _PATIENCE_SECONDS or now < self._looks_from:
            return
        with self._finding:
            present, found = self.address, self._searched()
            if found is not None and self._follow(found) and self.address == present:
                # It is there, and has its reasons.
                self._looks_from = now + _TRUST_SECONDS

    def _follow(self, primary: PrimaryAddress) -> bool:
        """Send attempts to a primary from now on; return whether it is not one of the past."""
        with self._moving:
            if primary.epoch < self._epoch or self.closed.is_set():
                return False
            is_new = primary.address != self.address
            # The one that served first may not have been asked for its instance.
            if is_new or b"" != self._instance != primary.instance != b"":
                self.takeovers += 1
            if is_new or primary.instance:
                self._instance = primary.instance
            self._epoch, self.has_backup = primary.epoch, primary.has_backup
            left = self.transport
            if is_new:
                who = "by the replica " if self.is_replicated else ""
                _LOG.warning("%s is served %sat %s now", self._task, who, primary.address)
                if not self.is_replicated:
                    # A task that has moved is with the server of another one.
                    self.expected = Expected("ps")
                self.transport = ServerTransport(primary.address, self._token, self.expected)
        if is_new:
            left.close()
        return True

    def move(self, address: str) -> None:
        """Send attempts to another address, or to other replicas, unless it is empty."""
        with self._moving:
            if self.closed.is_set() or not address or self._is_here(address):
                return
            _LOG.warning("%s is looked for at %s from now on", self.peer, address)
            # Other threads may still wait there, each until its own call fails.
            self.transport.retire()
            self._retired.append(self.transport)
            self._search.close()
            self._settle(address)

    def _is_here(self, address: str) -> bool:
        return {*replica_addresses(self._task, address)} == {*self._replicas}

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
            handshake=request.handshake,
        )
        transport = self.transport
        try:
            attempt = transport.send(call, control=request.opens)
        except ValueError:
            # What grpc raises where another thread has closed the channel.
            self.require_open()
            if transport is self.transport:
                raise
            return self.attempt(request, deadlines, style)
        attempt.responses.received = self.meter.received
        return attempt

    def require_open(self) -> None:
        """Raise `CancelledError` if somebody has closed the route."""
        if self.closed.is_set():
            raise closed_error(self.peer)

    def trim(self) -> None:
        """Free shared memory that was not used since the last call."""
        self.transport.trim()

    def close(self) -> None:
        """Fail all attempts, those under way and those to come."""
        self.closed.set()
        with self._moving:
            self._search.close()
            for transport in (*self._retired, self.transport):
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
