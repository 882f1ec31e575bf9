"""The life of a server: its data plane and its health server, from start to stop."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

import grpc
from typing_extensions import Self

from stratagem_proto.memory import half_of_memory
from stratagem_proto.v1.status_pb2 import GetStatusResponse
from stratagem_rpc.channel import SERVER_OPTIONS, STALL_SECONDS
from stratagem_rpc.server_log import LOG
from stratagem_rpc.serving.entrance import MEMBERS, STRANGERS, Entrance, Limits
from stratagem_rpc.serving.health import HealthServer
from stratagem_rpc.serving.pages import ShownServer, offered
from stratagem_rpc.serving.process import LoopThread, most_connections
from stratagem_rpc.serving.settings import ServingSettings, bound
from stratagem_rpc.serving.status import StatusService
from stratagem_rpc.socket_server.listener import OfferedSockets, SocketListener, listen
from stratagem_rpc.socket_server.memory import FrameMemory, Reserved, refused
from stratagem_rpc.sockets.closing import kept_from_forks

if TYPE_CHECKING:
    from stratagem_rpc.serving.metrics import MetricsEndpoint

# Messages that arrive have a budget of their own: that for requests divided by this.
FRAMES_PART = 4

# The longest wait for the status, which a server that is stopping does not answer. Prometheus has
# stopped waiting by then.
_SCRAPE_SECONDS = 10.0


class RpcServer(ABC):
    """One server, in this process.

    It serves from `start` until `stop`, which may be called from any thread but the server's own. A
    stopped server cannot be started again.

    Attributes:
        service: The full name of the service of the data plane.
        options: The options of gRPC for the data plane.
        patience: The most seconds that a client may take to send or read more of a call over a
            socket; None for any time.
        members: How calls by gRPC of the cluster may wait for their first message.
        strangers: The same of whoever else connects.
        address: The "host:port" of the data plane; "" before it has started.
        health_address: The "host:port" of health checks.
        metrics_address: The "host:port" of figures for Prometheus; "" if there is none.
        page_url: What signs a browser in to the page that is there, too; "" if there is none.
        leaves_work: Whether something goes on in a thread after the server has stopped, which
            nothing can interrupt.
    """

    service: ClassVar[str]
    options: ClassVar[Sequence[tuple[str, int]]] = SERVER_OPTIONS
    patience: ClassVar[float | None] = STALL_SECONDS
    members: ClassVar[Limits] = MEMBERS
    strangers: ClassVar[Limits] = STRANGERS

    def __init__(self, settings: ServingSettings) -> None:
        self.address = ""
        self.health_address = ""
        self.metrics_address = ""
        self.page_url = ""
        self.leaves_work: bool = False
        self._label = settings.label
        self._task, self._token = f"{settings.job}:{settings.task}", settings.token
        self._bind, self._health_bind = settings.bind, settings.health_bind
        self._metrics_bind = settings.metrics_bind
        self._certificates = settings.certificates
        self._transport, self._data_port = settings.transport, settings.data_port
        self._sockets: SocketListener | None = None
        self._drain_seconds, self._lease_seconds = settings.drain_seconds, settings.lease_seconds
        self._log = LOG.bind(task=settings.label)
        self._stopping = threading.Lock()
        self._stopped = threading.Event()
        self._opened: ExitStack | None = None

    @abstractmethod
    def _status_service(self) -> StatusService:
        """Return what describes the server at present."""

    @abstractmethod
    def _listens(self, sockets: OfferedSockets) -> None:
        """Keep what sessions are told of the sockets; called before calls arrive."""

    def _share(self, nbytes: int, session_id: bytes) -> Reserved:
        """Take bytes of the budget for memory that a client shares.

        Args:
            nbytes: How many.
            session_id: The client's session.

        Raises:
            ResourceExhaustedError: Not so many are left.
        """
        return refused(nbytes, session_id)

    def _client_of(self, session_id: bytes) -> str | None:
        """Return the label of the client that has opened a session; None if it is not open.

        Args:
            session_id: The session, as a connection names it.
        """
        return None

    @property
    def _frame_bytes(self) -> int:
        """The most bytes of messages over sockets that arrive, or wait for their calls."""
        return half_of_memory() // FRAMES_PART

    @abstractmethod
    def _handlers(self) -> Sequence[grpc.GenericRpcHandler]:
        """Return the handlers of all calls, that of the status among them; start nothing yet."""

    async def _prepare(self) -> None:  # noqa: B027 - most servers have nothing to prepare
        """Come to the state to begin with; clients cannot connect yet."""

    async def _begin(self) -> None:  # noqa: B027 - a server may have nothing to begin
        """Start background tasks."""

    @abstractmethod
    async def _refuse(self, seconds: float) -> None:
        """End or refuse calls that would take longer than so many seconds; calls still arrive."""

    @abstractmethod
    async def _end(self) -> None:
        """End background tasks; no calls are left."""

    def start(self) -> None:
        """Bind the ports and serve; return once the server answers calls.

        Raises:
            UnavailableError: An address cannot be bound.
        """
        handlers = self._handlers()
        with ExitStack() as opened:
            self._health = HealthServer(self._health_bind, self.service)
            opened.callback(self._health.stop)
            self._loop = LoopThread.acquire()
            opened.callback(self._loop.release)
            endpoint = self._answer_scrapes(opened)
            self._loop.run(self._serve(handlers))
            opened.enter_context(kept_from_forks(self._places()))
            self._show_page(endpoint, opened)
            self._opened = opened.pop_all()
        self._health.start(self._loop, self._lease_seconds)
        self.health_address = self._health.address
        self._log.info("serving", address=self.address, health=self.health_address)

    def _places(self) -> list[int | bytes]:
        addresses = self.address, self._health.address, self.metrics_address
        ports = [int(each.rpartition(":")[2]) for each in addresses if each]
        return [*ports, *(self._sockets.places if self._sockets else ())]

    def _answer_scrapes(self, opened: ExitStack) -> MetricsEndpoint | None:
        if not self._metrics_bind:
            return None
        # Few processes need Prometheus's library.
        from stratagem_rpc.serving.metrics import MetricsEndpoint

        endpoint = MetricsEndpoint(self._metrics_bind, self._described, self._certificates)
        opened.callback(endpoint.stop)
        self.metrics_address = endpoint.address
        return endpoint

    def _described(self, with_variables: bool = False) -> GetStatusResponse:
        return self._loop.run(self._status_service().status(with_variables), _SCRAPE_SECONDS)

    def _show_page(self, endpoint: MetricsEndpoint | None, opened: ExitStack) -> None:
        """Serve the page that is offered, if any is."""
        make = offered()
        if endpoint is None or make is None:
            return
        is_encrypted = self._certificates is not None
        page = make(
            ShownServer(
                self._task,
                self.address,
                endpoint.address,
                is_encrypted,
                self._token,
                self._described,
            )
        )
        opened.callback(page.stop)
        endpoint.show(page)
        self.page_url = page.url
        self._log.info("a page to look at", url=page.url)

    async def _serve(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        await self._prepare()
        connections = ("grpc.max_allowed_incoming_connections", most_connections())
        self._server = grpc.aio.server(options=[*self.options, connections])
        # Without a certificate nobody gets as far as to make a call.
        strangers = self.members if self._certificates else self.strangers
        self._entrance = Entrance(self.members, strangers)
        self._server.add_generic_rpc_handlers(tuple(map(self._entrance.handler, handlers)))
        self.address = bound(self._server, self._bind, self._certificates)
        try:
            self._sockets = self._listener(handlers)
            await self._server.start()
            await self._begin()
        except BaseException:
            await self._hang_up(0)
            raise

    def _listener(self, handlers: Sequence[grpc.GenericRpcHandler]) -> SocketListener | None:
        listening = listen(self.address, self._transport, self._data_port)
        if not listening.sockets:
            return None
        self._listens(listening.offered)
        memory = FrameMemory(self._frame_bytes, self._client_of)
        certificates, patience = self._certificates, self.patience
        return SocketListener(handlers, listening, memory, self._share, patience, certificates)

    def _forget_handlers(self) -> None:
        """Look handlers up again, since others answer from now on."""
        if self._sockets is not None:
            self._sockets.handler.cache_clear()

    def announce_stop(self) -> None:
        """Say that it is about to stop, as others do that stop with it."""
        self._health.announce_drain()

    def stop(self, grace: float | None = None) -> None:
        """Refuse new calls, let running ones end, and stop.

        A repetition does nothing, and neither does a call before the server has started.

        Args:
            grace: Seconds for running calls; by default `drain_seconds` of the settings.
        """
        with self._stopping:
            if self._opened is None or self._stopped.is_set():
                return
            self.announce_stop()
            seconds = self._drain_seconds if grace is None else grace
            self._loop.run(self._drain(seconds))
            self._opened.close()
            self._stopped.set()
            self._log.info("stopped")

    async def _drain(self, seconds: float) -> None:
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        await self._refuse(seconds)
        await self._hang_up(max(0.0, end - clock()))
        await self._end()

    async def _hang_up(self, seconds: float) -> None:
        """Take no more calls, and give those under way so many seconds to end."""
        others = [self._sockets.stop(seconds)] if self._sockets else []
        await asyncio.gather(self._server.stop(seconds), *others)

    def join(self) -> None:
        """Wait until the server has stopped."""
        self._stopped.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
