"""The way to one parameter server, wherever it is now, by which attempts of requests reach it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple, Protocol

import grpc

from stratagem._core.waiting import uninterrupted
from stratagem._ps_client.requests.request import Request, Result
from stratagem._ps_client.server_transport import ServerTransport
from stratagem._ps_client.session import Identity, handshake
from stratagem._ps_client.transport import Attempt, Call, Style, TrafficMeter
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
from stratagem_proto.v1 import servers_pb2 as pb
from stratagem_proto.v1.replication_pb2 import STANDING_PRIMARY
from stratagem_proto.v1.session_pb2 import FrameSockets
from stratagem_proto.v1.status_pb2 import GetStatusResponse
from stratagem_proto.wire.segment import Segment
from stratagem_rpc.asking import Answer, Question, begin_status
from stratagem_rpc.certificates.presented import presented
from stratagem_rpc.channel import (
    ANY_PARAMETER_SERVER,
    Deadlines,
    Expected,
    LastingChannel,
    open_channel,
)

_SERVICE = pb.DESCRIPTOR.services_by_name["ServersService"].full_name
_PATH = f"/{_SERVICE}/LocateTasks"

# A server that does not say so sooner is busy, stopped or cut off, and asked again.
_LOCATE_SECONDS = 0.5


class TaskDirectory:
    """Says where the server of a task is, as the program or other servers know it. Thread-safe.

    Args:
        task: The index of the task in the job ps.
        identity: Who asks.
        locate: Returns the address that the program knows of, "" if it knows of none.
        servers: Returns the addresses of servers that may know where the task has moved.
    """

    def __init__(
        self,
        task: int,
        identity: Identity,
        locate: Callable[[], str] = str,
        servers: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._task, self._servers = task, servers
        self._token, self._asking = identity.token, handshake(identity, identifier=b"")
        self.located = locate

    def find(self, epoch: int) -> PrimaryAddress | None:
        """Return the server that serves the task, by the word of any server; None if none says so.

        Args:
            epoch: What is older is not believed.
        """
        with ExitStack() as channels:
            opened = [
                channels.enter_context(open_channel(address, expected=ANY_PARAMETER_SERVER))
                for address in sorted({*self._servers()})
            ]
            calls = [self._ask_server(channel) for channel in opened]
            try:
                found = [*filter(None, map(_primary_of_task, calls))]
            finally:
                with uninterrupted():
                    for call in calls:
                        call.cancel()
        latest = max(found, key=lambda each: each.epoch, default=None)
        return latest if latest is not None and latest.epoch >= epoch else None

    def _ask_server(self, channel: grpc.Channel) -> Answer[pb.LocateTasksResponse]:
        request = pb.LocateTasksRequest(asking=self._asking, tasks=[self._task])
        question = Question(_PATH, request, pb.LocateTasksResponse)
        return Answer(channel, question, self._token, _LOCATE_SECONDS)


def _primary_of_task(call: Answer[pb.LocateTasksResponse]) -> PrimaryAddress | None:
    """Return what a server says of the task; None if it knows of no tasks that move."""
    try:
        found = call.result().tasks
    except grpc.RpcError:
        return None
    view = found[0].view if found else None
    if view is None or not view.HasField("primary"):
        return None
    primary = view.primary
    return PrimaryAddress(primary.address, view.epoch, True, primary.instance, primary.index)


# A replica that does not say so sooner is busy, stopped or cut off, and asked again.
_STATUS_SECONDS = 0.5

_Answer = tuple[str, GetStatusResponse | None]


class PrimaryAddress(NamedTuple):
    """The replica that serves a task.

    Attributes:
        address: The "host:port" by which this process knows it.
        epoch: The epoch of the view that says so; 0 of a server that has no replicas.
        has_backup: Whether another replica has all that it acknowledges, as far as is known.
        instance: Which state it serves, as in the view; empty if that is not known.
        server: The number of the server, of a task that moves; None if it is not known.
    """

    address: str
    epoch: int
    has_backup: bool = True
    instance: bytes = b""
    server: int | None = None


class PrimarySearch:
    """Asks replicas which of them is the primary. Thread-safe.

    It keeps a channel to each, since it asks again and again while one takes over.
    """

    def __init__(self, addresses: Sequence[str], token: str, expected: Expected) -> None:
        """Ask nothing yet.

        Args:
            addresses: Where the replicas are.
            token: The secret of the cluster.
            expected: The task that they are replicas of.
        """
        self._addresses, self._token, self._expected = addresses, token, expected
        self._channels: dict[str, LastingChannel] = {}
        self._closed = False
        self._opening = threading.Lock()

    def find(self, epoch: int) -> PrimaryAddress | None:
        """Return the replica that says first that it is the primary; None if none does in time.

        Args:
            epoch: What is older is not believed.
        """
        answers: SimpleQueue[_Answer] = SimpleQueue()
        calls = [self._ask_replica(address, answers.put) for address in self._addresses]
        try:
            # Each call ends at its deadline.
            for _ in calls:
                primary = _primary(*answers.get())
                if primary is not None and primary.epoch >= epoch:
                    return primary
            return None
        finally:
            with uninterrupted():
                for call in calls:
                    call.cancel()

    def _ask_replica(
        self, address: str, answered: Callable[[_Answer], None]
    ) -> Answer[GetStatusResponse]:
        with uninterrupted():
            call = begin_status(self._channel(address), self._token, _STATUS_SECONDS)
            call.add_done_callback(partial(_answer_by, address, answered))
            return call

    def _channel(self, address: str) -> grpc.Channel:
        with self._opening:
            if self._closed:
                raise ValueError("the search is closed")
            if address not in self._channels:
                self._channels[address] = LastingChannel(address, self._expected)
            return self._channels[address].get()

    def close(self) -> None:
        """Ask no more; `find` then raises ValueError."""
        with uninterrupted(), self._opening:
            self._closed = True
            for channel in self._channels.values():
                channel.close()


def _answer_by(
    address: str, answered: Callable[[_Answer], None], call: Future[GetStatusResponse]
) -> None:
    try:
        answered((address, call.result()))
    except grpc.RpcError:
        answered((address, None))


def _primary(address: str, status: GetStatusResponse | None) -> PrimaryAddress | None:
    """Return what a replica's answer says of it, if it is the primary."""
    if status is None:
        return None
    server = status.parameter_server
    if not server.HasField("replication"):
        return PrimaryAddress(address, 0)
    found = server.replication
    if found.standing != STANDING_PRIMARY:
        return None
    view = found.view
    return PrimaryAddress(address, view.epoch, view.HasField("backup"), found.replica.instance)


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
        is_replicated: Whether the server has replicas, of which another may serve.
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
        self.is_replicated: bool = len(self._replicas) > 1
        self.expected: Expected = Expected("ps", self._index)
        self._search = PrimarySearch(self._replicas, self._token, self.expected)
        self.transport: ServerTransport = ServerTransport(
            self._replicas[0], self._token, self.expected
        )

    @property
    def address(self) -> str:
        return self.transport.address

    @property
    def has_moved(self) -> bool:
        """Whether the task was found to be served elsewhere than where it began."""
        return self._epoch > 0 and not self.is_replicated

    @property
    def place(self) -> str:
        return f"{self._task} at {self.address}"

    @property
    def way(self) -> str:
        return self.transport.way

    @property
    def is_met(self) -> bool:
        """Whether the server has told of its sockets since attempts go to it."""
        return self.transport.has_learned

    def learn(self, sockets: FrameSockets) -> None:
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
            is_new = primary.address != self.address or self._is_guest(primary)
            # The one that served first may not have been asked for its instance.
            if is_new or b"" != self._instance != primary.instance != b"":
                self.takeovers += 1
            if is_new or primary.instance:
                self._instance = primary.instance
            self._epoch, self.has_backup = primary.epoch, primary.has_backup
            left = self.transport
            if is_new:
                self._tell_of(primary)
                if not self.is_replicated:
                    # A task that has moved is with the server of another one.
                    self.expected = Expected("ps", primary.server)
                self.transport = ServerTransport(primary.address, self._token, self.expected)
        if is_new:
            left.close()
        return True

    def finds_host(self, failed: ServerTransport) -> bool:
        """Whether a server of another number was found to have the task, where it is listed.

        Only a certificate tells: each names the number of a server, and that of the task was
        expected.

        Args:
            failed: By which another certificate was shown.
        """
        with self._finding:
            if failed is not self.transport:
                return True
            is_certified = presented() is not None and not self.is_replicated
            found = self._directory.find(self._epoch) if is_certified else None
            return found is not None and self._is_guest(found) and self._follow(found)

    def _is_guest(self, primary: PrimaryAddress) -> bool:
        """Whether a task is where it is listed, with a server that is not that of its number."""
        is_own = primary.server in (None, self._index) or self.is_replicated
        return not is_own and self.expected.task == self._index

    def _tell_of(self, primary: PrimaryAddress) -> None:
        if primary.address != self.address:
            who = "by the replica " if self.is_replicated else ""
            _LOG.warning("%s is served %sat %s now", self._task, who, primary.address)

    def move(self, address: str) -> None:
        """Send attempts to another address, or to other replicas, unless it is empty."""
        with self._moving:
            replicas = {*self._replicas}
            if not address or {*replica_addresses(self._task, address)} == replicas:
                return
            if self.closed.is_set():
                return
            _LOG.warning("%s is looked for at %s from now on", self.peer, address)
            # Other threads may still wait there, each until its own call fails.
            self.transport.retire()
            self._retired.append(self.transport)
            self._search.close()
            self._settle(address)

    def attempt(
        self, request: Request[Result], deadlines: Deadlines, style: Style = Style.SENT
    ) -> Attempt:
        """Send a stamped request once."""
        if self.closed.is_set():
            raise self._closed_error()
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
            handshake=request.handshake if request.opens else None,
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
            raise self._closed_error()

    def _closed_error(self) -> CancelledError:
        return CancelledError(f"the connection to {self.peer} is closed; make a new strategy")

    def trim(self) -> None:
        self.transport.trim()

    def close(self) -> None:
        """Fail all attempts, those under way and those to come."""
        self.closed.set()
        with self._moving:
            self._search.close()
            for transport in (*self._retired, self.transport):
                transport.close()


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
