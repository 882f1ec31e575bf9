"""The replica that follows: it has all that the primary has acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from stratagem_proto.errors import StratagemError, UnavailableError
from stratagem_proto.server_log import LOG
from stratagem_proto.v1.replication_pb2 import (
    Acknowledgement,
    BatchPiece,
    Beacon,
    FollowRequest,
    FollowResponse,
    ImagePiece,
    Introduction,
    ReplicationStatus,
    View,
)
from stratagem_psserver.environment import Clock
from stratagem_psserver.replication.backup_link import reason_of
from stratagem_psserver.replication.batches import BatchAssembler
from stratagem_psserver.replication.channel import Dialled
from stratagem_psserver.replication.standby import IncomingImage, Standby
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState

Call: TypeAlias = Dialled[FollowRequest, FollowResponse]

Dial: TypeAlias = Callable[[str], Call]
"""Calls the replica at an address."""


class Backup:
    """Follows one primary after the other.

    Args:
        introduction: Who it is.
        settings: The settings of the server.
        fresh_state: Returns a state to begin with.
        dial: Calls a primary.
        clock: Returns the time in seconds.

    Attributes:
        standby: The state; None before there is an image.
        heard: When a primary was heard of last.
        trouble: Why it does not follow; "" if it does.
    """

    def __init__(
        self,
        introduction: Introduction,
        settings: ServerSettings,
        fresh_state: Callable[[], ServerState],
        dial: Dial,
        clock: Clock,
    ) -> None:
        self.standby: Standby | None = None
        self.trouble = ""
        self._introduction, self._settings = introduction, settings
        self._fresh_state, self._dial = fresh_state, dial
        self._clock = clock
        self.heard = self._clock()
        self._incoming: IncomingImage | None = None
        self._assembler = BatchAssembler()
        self._beacon = 0
        # Whether the state is that of the present call.
        self._has_image = False

    @property
    def is_silent(self) -> bool:
        """Whether no primary was heard of for so long that none may answer clients any more."""
        return self._clock() - self.heard >= self._settings.failover_seconds

    def fill(self, status: ReplicationStatus) -> None:
        """Fill in what a backup knows of its primary."""
        status.trouble = self.trouble
        status.silent_seconds = self._clock() - self.heard
        if self.standby is not None:
            status.behind = self.standby.position - self.standby.applied

    async def follow(self, view: View) -> None:
        """Follow the primary of a view until it is silent or one of the two ends it."""
        channel = self._dial(view.primary.address)
        self._introduction.epoch = view.epoch
        self._has_image = False
        try:
            await channel.send(FollowRequest(introduction=self._introduction))
            while True:
                await self._take(await self._next(channel), view)
                await self._acknowledge(channel)
        except (StratagemError, OSError) as error:
            self._note(reason_of(error))
        finally:
            await channel.close()
            self._drop_incoming()

    async def _next(self, channel: Call) -> FollowResponse:
        try:
            return await asyncio.wait_for(channel.receive(), self._settings.failover_seconds)
        except (TimeoutError, asyncio.TimeoutError):
            raise UnavailableError("the primary is silent") from None

    def _note(self, trouble: str) -> None:
        if trouble != self.trouble:
            LOG.warning("does not follow", task=self._settings.label, why=trouble)
        self.trouble = trouble

    async def _take(self, message: FollowResponse, view: View) -> None:
        match message.WhichOneof("kind"):
            case "beacon":
                self._hear(message.beacon, view)
            case "image":
                self._drop_incoming()
                self._incoming = IncomingImage()
            case "piece":
                await self._add_piece(message.piece)
            case "batch":
                self._add_batch(message.batch)

    def _hear(self, beacon: Beacon, view: View) -> None:
        if beacon.epoch < view.epoch:
            raise UnavailableError("it does not know yet that it is the primary")
        self.heard, self._beacon, self.trouble = self._clock(), beacon.number, ""

    async def _add_piece(self, piece: ImagePiece) -> None:
        incoming = self._incoming
        if incoming is None:
            return
        incoming.add(piece)
        if piece.is_last:
            fresh = Standby(self._fresh_state(), incoming.read(self._settings.task))
            try:
                await fresh.begin()
            except BaseException:
                fresh.discard()
                raise
            self.discard()
            self.standby, self._has_image = fresh, True
            self._drop_incoming()

    def _add_batch(self, piece: BatchPiece) -> None:
        records = self._assembler.add(piece)
        if self.standby is not None:
            self.standby.require_sound()
            self.standby.add(records)

    async def _acknowledge(self, channel: Call) -> None:
        told = Acknowledgement(beacon=self._beacon)
        if self._has_image and self.standby is not None and self.standby.has_room:
            told.position = self.standby.position
        await channel.send(FollowRequest(acknowledgement=told))

    def _drop_incoming(self) -> None:
        if self._incoming is not None:
            self._incoming.close()
        self._incoming, self._assembler = None, BatchAssembler()

    def discard(self) -> None:
        """Forget the state."""
        if self.standby is not None:
            self.standby.discard()
        self.standby = None
