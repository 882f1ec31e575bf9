"""The replica that follows: it has all that the primary has acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from stratagem_proto.errors import (
    FailedPreconditionError,
    ResourceExhaustedError,
    StratagemError,
    UnavailableError,
)
from stratagem_proto.v1.replication_pb2 import (
    Acknowledgement,
    BatchPiece,
    Beacon,
    FollowRequest,
    FollowResponse,
    Introduction,
    ReplicationStatus,
    StateDigest,
    View,
)
from stratagem_psserver.environment import Clock
from stratagem_psserver.replication.backup_link import reason_of
from stratagem_psserver.replication.exchange import (
    BatchAssembler,
    DialledChannel,
    Pace,
    Peers,
    Race,
)
from stratagem_psserver.replication.standby import IncomingImage, ReplicaDisk, Standby
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState
from stratagem_rpc.server_log import LOG

Call: TypeAlias = DialledChannel[FollowRequest, FollowResponse]

# What somebody has to do something about: it was started otherwise, or has no room.
_REFUSALS = (FailedPreconditionError, ResourceExhaustedError)


class Backup:
    """Follows one primary after the other.

    Attributes:
        standby: The state; None before there is an image.
        heard: When a primary was heard of last.
        view: The view that it told of then.
        trouble: Why it does not follow; "" if it does.
        is_refused: Whether the last primary has refused it for good.
        may_lead: Whether the last primary has handed over.
    """

    def __init__(
        self,
        introduction: Introduction,
        settings: ServerSettings,
        fresh_state: Callable[[], ServerState],
        peers: Peers,
        disk: ReplicaDisk | None,
        clock: Clock,
    ) -> None:
        self.standby: Standby | None = None
        self.trouble, self.is_refused, self.may_lead = "", False, False
        self._introduction, self._settings = introduction, settings
        self._fresh_state, self._peers = fresh_state, peers
        self._disk = disk
        self._clock = clock
        self.heard, self.view = self._clock(), View()
        self._incoming: IncomingImage | None = None
        self._assembler = BatchAssembler()
        self._beacon = 0
        # Whether the state is that of the present call, and noted as complete on disk.
        self._has_image = self._is_noted = False
        self._sent_digest: StateDigest | None = None
        self._arrived, self._telling = asyncio.Event(), asyncio.Lock()
        self._parts = Race()

    async def until_free(self) -> None:
        """Wait until no former primary can answer clients any more."""
        while self.standby is not None and not self.may_lead and not self.is_silent:
            await asyncio.sleep(self._settings.failover_seconds / 16)

    @property
    def is_silent(self) -> bool:
        """Whether no primary was heard of for so long that none may answer clients any more."""
        return self._clock() - self.heard >= self._settings.failover_seconds

    def fill(self, status: ReplicationStatus) -> None:
        status.trouble = self.trouble
        status.silent_seconds = self._clock() - self.heard
        if self.standby is not None:
            status.behind = self.standby.position - self.standby.applied

    async def follow(self, view: View) -> None:
        """Follow the primary of a view until it is silent or one of the two ends it."""
        call = self._peers.call(view.primary.address)
        self._has_image = self.may_lead = False
        self._assembler = BatchAssembler()
        try:
            await self._parts.run(self._converse(call, view), self._watch())
        except (StratagemError, OSError) as error:
            self.note(reason_of(error))
            self.is_refused = isinstance(error, _REFUSALS)
        finally:
            self._drop_unloaded()
            await call.close()

    async def _converse(self, call: Call, view: View) -> None:
        # Until a host that is gone, or a name, is found to lead nowhere, this may take long.
        await call.send(FollowRequest(introduction=self._introduction))
        await Race().run(self._listen(call, view), self._acknowledge_arrivals(call))

    async def _listen(self, call: Call, view: View) -> None:
        while True:
            message = await call.receive()
            match message.WhichOneof("kind"):
                case "beacon":
                    self._hear(message.beacon, view)
                    await self._acknowledge(call)
                case "image":
                    self._drop_incoming()
                    # Nobody relies on it any more; see `Primary`.
                    self.discard()
                    self._incoming = IncomingImage(self._disk.clear() if self._disk else None)
                case "piece" if self._incoming is not None:
                    self._incoming.add(message.piece)
                    if message.piece.is_last:
                        self._begin_standby(self._incoming)
                case "batch":
                    self._add_batch(message.batch)
                case "handed_over":
                    self.may_lead = True
                    return

    def _hear(self, beacon: Beacon, view: View) -> None:
        if beacon.view.epoch < view.epoch:
            raise UnavailableError("it does not know yet that it is the primary")
        self.heard, self._beacon, self.trouble = self._clock(), beacon.number, ""
        self.view = beacon.view

    def _add_batch(self, piece: BatchPiece) -> None:
        arrivals = self._assembler.add(piece)
        if self.standby is not None and arrivals:
            self.standby.require_sound()
            self.standby.add(arrivals)
            self._arrived.set()

    def _begin_standby(self, incoming: IncomingImage) -> None:
        """Load an image all of which has come; records behind it come meanwhile."""
        image, state = incoming.read(self._settings.task), self._fresh_state()
        disk, speed = self._disk, self._introduction.bytes_per_second
        pace = Pace(speed, self._clock) if speed else None
        self.standby = Standby(state, image, disk.begin(state) if disk else None, pace)
        self._has_image, self._is_noted = True, False
        self._arrived.set()

    async def _acknowledge_arrivals(self, call: Call) -> None:
        """Acknowledge records as soon as they are where they have to be, behind a loaded image."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            standby = self.standby
            if standby is None:
                continue
            await standby.ready()
            if standby is not self.standby:
                continue
            standby.require_sound()
            self._drop_incoming()
            try:
                await standby.kept(standby.position)
            except UnavailableError:
                if standby is self.standby:
                    raise
            else:
                await self._acknowledge(call)

    async def _watch(self) -> None:
        began, patience = self._clock(), self._settings.failover_seconds
        while (left := max(self.heard, began) + patience - self._clock()) > 0:
            await asyncio.sleep(left)
        raise UnavailableError("the primary is silent")

    def note(self, trouble: str) -> None:
        """Tell people why it does not follow, once."""
        if trouble != self.trouble:
            LOG.warning("does not follow", task=self._settings.label, why=trouble)
        self.trouble = trouble

    async def _acknowledge(self, call: Call) -> None:
        told, standby = Acknowledgement(beacon=self._beacon), self.standby
        if self._has_image and standby is not None and standby.is_complete and standby.has_room:
            if self._disk is not None and not self._is_noted:
                # What is on disk is a state to go on from, and that of this replica.
                self._disk.folder.belong(self._introduction.replica)
            self._is_noted = True
            told.position = standby.kept_position
            if standby.digest is not None and standby.digest is not self._sent_digest:
                told.digest.CopyFrom(standby.digest)
                self._sent_digest = standby.digest
        async with self._telling:
            await call.send(FollowRequest(acknowledgement=told))

    def _drop_unloaded(self) -> None:
        """Drop what has come of an image, if it is not loaded."""
        if self.standby is not None and not self.standby.is_loaded:
            # Nothing was acknowledged of it.
            self.discard()
            if self._disk is not None:
                self._disk.give_up()
        self._drop_incoming()

    def _drop_incoming(self) -> None:
        if self._incoming is not None:
            self._incoming.close()
        self._incoming = None

    def withdraw(self) -> None:
        """Follow no more; keep the state, for the primary may have asked for a view with it."""
        self._parts.end()

    def discard(self) -> None:
        if self.standby is not None:
            self.standby.discard()
        self.standby = None
