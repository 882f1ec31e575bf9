"""A server that follows what is published, answers lookups of it, and is followed in turn."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from stratagem_proto.errors import InternalError, InvalidArgumentError, StratagemError
from stratagem_proto.memory import half_of_memory
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.v1 import lookup_pb2, publication_pb2
from stratagem_proto.v1.status_pb2 import GetStatusResponse
from stratagem_reader.lookups import Lookups
from stratagem_reader.reader import Follower
from stratagem_reader.replica import Prepared
from stratagem_reader.republication import Republication
from stratagem_reader.source import Source
from stratagem_rpc.serving.figures import Figures
from stratagem_rpc.serving.handshake import Handshakes, challenge_handler
from stratagem_rpc.serving.policy import AccessPolicy, Permissions
from stratagem_rpc.serving.rpc_boundary import RpcBoundary, handler_of
from stratagem_rpc.serving.server import RpcServer
from stratagem_rpc.serving.settings import ServingSettings
from stratagem_rpc.serving.status import StatusService
from stratagem_rpc.shares import Shares
from stratagem_rpc.socket_server.listener import OfferedSockets
from stratagem_rpc.socket_server.memory import Reserved, refused

LOOKUPS = lookup_pb2.DESCRIPTOR.services_by_name["LookupService"]
_PUBLICATION = publication_pb2.DESCRIPTOR.services_by_name["PublicationService"]

SOURCE_HEALTH = "stratagem.source"
"""What health checks call the source: it serves while it can be followed."""

# How often the server looks how old its version is, and whose sessions have ended.
_LOOK_SECONDS = 0.25


@dataclass(frozen=True)
class ReaderServerSettings(ServingSettings):
    """Settings of a reader server.

    Attributes:
        max_age: The most seconds since a version was published that is answered of; None for any.
        hold_seconds: The most seconds for which a client may keep a version, as modules do that
            look up in the midst of a forward.
        publication_bytes: The most bytes of increments that are kept for those who follow.
        policy: Who may look up what; None where roles alone decide.

    Raises:
        InvalidArgumentError: A number is not above 0; or as `ServingSettings`.
    """

    job: str = "serve"
    lease_seconds: float = 60.0
    max_age: float | None = None
    hold_seconds: float = 1.0
    publication_bytes: int = 256 << 20
    policy: AccessPolicy | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_age is not None and self.max_age <= 0:
            raise InvalidArgumentError(
                f"--max-age is {self.max_age:g}; give seconds above 0, or leave it out to answer "
                "of any version"
            )


class _ServedFollower(Follower):
    """Tells a server of each version, in the thread that follows."""

    def __init__(self, source: Source, server: ReaderServer) -> None:
        self._server, self._may_begin = server, threading.Event()
        super().__init__(source, timeout=0.0)

    def begin(self) -> None:
        """Follow from now on: the server has all that is to be told of versions."""
        self._may_begin.set()

    def _follow(self) -> None:
        self._may_begin.wait()
        super()._follow()

    def close(self) -> None:
        self._may_begin.set()
        super().close()

    def _taken(self, prepared: Prepared) -> None:
        self._server.taken(prepared)

    def _note(self, error: StratagemError | None) -> None:
        super()._note(error)
        self._server.source_changed(error)


class ReaderServer(RpcServer):
    """One reader server, in this process.

    It serves from `start` on, and refuses lookups until it has a first version. It follows its
    source until `stop`, and closes it then.

    Args:
        settings: Its settings.
        source: What it follows.
    """

    service = LOOKUPS.full_name

    def __init__(self, settings: ReaderServerSettings, source: Source) -> None:
        super().__init__(settings)
        self.settings, self.source = settings, source
        self._versions = self._wholes = 0
        self._loop_of_calls: asyncio.AbstractEventLoop | None = None
        self._looking: asyncio.Task[None] | None = None
        self._shared = Shares(half_of_memory() // 4)
        self._is_announced: bool | None = None

    def _handlers(self) -> Sequence[grpc.GenericRpcHandler]:
        settings = self.settings
        self._republication = Republication(settings)
        self.follower = _ServedFollower(self.source, self)
        self._republication.follow(self.follower)
        incarnation, figures = os.urandom(SESSION_ID_BYTES), Figures()
        handshakes = Handshakes(settings)
        self._lookups = Lookups(
            settings, self.follower, incarnation, settings.max_age, settings.hold_seconds
        )
        self._status = StatusService(handshakes, incarnation, figures, self._fill)
        self.follower.begin()
        permissions = (
            Permissions(settings.policy, lambda name: (name,)) if settings.policy else None
        )
        boundary = RpcBoundary(handshakes, figures, self._lookups.sessions.known, permissions)
        return (
            self._status.handler(),
            challenge_handler(handshakes, lambda: incarnation, boundary),
            handler_of(boundary, LOOKUPS, self._lookups.methods()),
            handler_of(boundary, _PUBLICATION, self._republication.methods(permissions)),
        )

    def _status_service(self) -> StatusService:
        return self._status

    def _listens(self, sockets: OfferedSockets) -> None:
        self._lookups.offered = sockets

    def _client_of(self, session_id: bytes) -> str | None:
        session = self._lookups.sessions.known(session_id)
        return session.label if session else None

    def _share(self, nbytes: int, session_id: bytes) -> Reserved:
        session = self._lookups.sessions.known(session_id)
        # Each session for itself: most have no task, and so one label.
        client = session.name.hex() if session else ""
        if not client or self._shared.used_by(client) + nbytes > self._shared.share(client):
            return refused(nbytes, session_id)
        return _SharedBytes(self._shared, client, nbytes)

    async def _begin(self) -> None:
        self._loop_of_calls = asyncio.get_running_loop()
        self._republication.begin()
        self._looking = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        while True:
            self._announce()
            self._lookups.sessions.expire()
            await asyncio.sleep(_LOOK_SECONDS)

    def _announce(self) -> None:
        """Tell health checks whether lookups are answered, and the source is followed."""
        serves = self._serves
        if serves is not self._is_announced:
            if self._is_announced is not None or serves:
                self._log.info("answers lookups" if serves else "answers no lookups any more")
            self._is_announced = serves
        self._health.set_serving(self.service, serves)
        self._health.set_serving(SOURCE_HEALTH, self.follower.source_error is None)

    @property
    def _serves(self) -> bool:
        follower, most = self.follower, self.settings.max_age
        is_there = bool(follower.replica.number) and follower.replica.is_intact
        is_there = is_there and not isinstance(follower.source_error, InternalError)
        return is_there and (most is None or follower.age <= most)

    def taken(self, prepared: Prepared) -> None:
        """Note a version; called by the thread that follows."""
        self._versions += 1
        self._wholes += prepared.is_whole
        self._republication.taken(prepared)
        self._tell(self._lookups.arrived)
        self._tell(self._republication.arrived)

    def source_changed(self, error: StratagemError | None) -> None:
        """Note whether the source can be followed; called by the thread that follows."""
        self._tell(self._announce)

    def _tell(self, notify: object) -> None:
        loop = self._loop_of_calls
        if loop is not None and not loop.is_closed() and callable(notify):
            loop.call_soon_threadsafe(notify)

    async def _refuse(self, seconds: float) -> None:
        await self._republication.drain()

    async def _end(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        self._loop_of_calls = None
        self._lookups.close()

    def stop(self, grace: float | None = None) -> None:
        super().stop(grace)
        self.follower.close()

    async def _fill(self, status: GetStatusResponse, with_variables: bool) -> None:
        follower, mine = self.follower, status.reader_server
        mine.source, mine.version = follower.source.name, follower.replica.number
        if mine.version:
            mine.age_seconds = follower.age
        if self.settings.max_age is not None:
            mine.max_age_seconds = self.settings.max_age
        error = follower.source_error
        mine.source_problem = str(error)[:1000] if error else ""
        replica = follower.replica
        mine.variables = len(replica.dense) + len(replica.tables)
        mine.table_rows = sum(table.count for table in replica.tables.values())
        mine.bytes = replica.nbytes
        mine.looked_up_rows = self._lookups.looked_up
        mine.versions, mine.wholes = self._versions, self._wholes
        if mine.version:
            self._republication.report(mine.publication)
        self._lookups.describe(status)


class _SharedBytes:
    """Bytes of memory that a client shares, in the budget; see `Reserved`."""

    def __init__(self, shares: Shares, client: str, nbytes: int) -> None:
        self._shares, self._client, self._nbytes = shares, client, nbytes
        shares.count(client, nbytes)

    def release(self) -> None:
        """Release the bytes."""
        self._shares.count(self._client, -self._nbytes)
        self._nbytes = 0
