"""One replica of a task: it leads or follows, as the arbiter decides."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain

from stratagem_proto.errors import (
    FailedPreconditionError,
    StratagemError,
    UnavailableError,
)
from stratagem_proto.protocol import PROTOCOL_VERSION, SESSION_ID_BYTES
from stratagem_proto.server_log import LOG
from stratagem_proto.serving.handshake import check_handshake
from stratagem_proto.v1.log_pb2 import Kernels
from stratagem_proto.v1.replication_pb2 import (
    FollowRequest,
    FollowResponse,
    Introduction,
    Replica,
    ReplicationStatus,
    Standing,
    View,
)
from stratagem_proto.v1.session_pb2 import OpenSessionRequest, Task
from stratagem_psserver.persistence.kernels import described
from stratagem_psserver.replication.arbiters.arbiter import Arbiter
from stratagem_psserver.replication.backup import Backup, Dial
from stratagem_psserver.replication.channel import Channel
from stratagem_psserver.replication.host import Host
from stratagem_psserver.replication.primary import Primary
from stratagem_psserver.replication.replicated_log import ReplicatedLog
from stratagem_psserver.replication.views import (
    Follow,
    Lead,
    Propose,
    alone,
    is_backup,
    next_move,
)
from stratagem_psserver.state import ServerState


class ReplicatedTask:
    """Takes part in the replication of a task until it is closed.

    Args:
        host: The server.
        arbiter: Who decides which replica is the primary.
        address: The "host:port" at which others reach this replica.
        kernels: What the bits of its updates depend on.
        dial: Calls a primary.
    """

    def __init__(
        self, host: Host, arbiter: Arbiter, address: str, kernels: Kernels, dial: Dial
    ) -> None:
        self._host, self._arbiter, self._kernels, self._dial = host, arbiter, kernels, dial
        self._settings, self._environment = host.state.settings, host.state.environment
        self._me = Replica(index=self._settings.replica, address=address)
        self._view: View | None = None
        self._primary: Primary | None = None
        self._is_leaving = False
        self._position = 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Take part as a replica that has no state which others might rely on."""
        self._me = Replica(
            index=self._me.index,
            address=self._me.address,
            instance=self._environment.random_bytes(SESSION_ID_BYTES),
        )
        self._backup = Backup(
            self._introduction(),
            self._settings,
            self._host.fresh_state,
            self._dial,
            self._environment.clock,
        )

    def _introduction(self) -> Introduction:
        settings = self._settings
        asking = OpenSessionRequest(
            protocol_version=PROTOCOL_VERSION,
            cluster_token=settings.token,
            task=Task(job=settings.job, index=settings.task),
        )
        return Introduction(
            asking=asking,
            replica=self._me,
            kernels=self._kernels,
            durability=settings.durability,
        )

    async def run(self) -> None:
        """Lead and follow by turns, until it is cancelled or has left."""
        while not self._is_leaving:
            try:
                self._view = await self._arbiter.read()
                await self._take_part(self._view)
            except StratagemError as error:
                LOG.warning("cannot take part", task=self._settings.label, why=error.message)
            except Exception as error:
                # Whatever it was, others are not to wait for this replica.
                LOG.error("cannot take part", task=self._settings.label, exc_info=error)
            else:
                continue
            await asyncio.sleep(self._settings.failover_seconds / 4)

    async def _take_part(self, view: View | None) -> None:
        move = next_move(view, self._me)
        match move:
            case Propose():
                await self._arbiter.replace(move.present, move.following)
            case Lead():
                await self._lead(move.view)
            case Follow():
                await self._follow(move.view)

    async def _follow(self, view: View) -> None:
        self._host.refuse(view)
        if view.HasField("primary"):
            await self._backup.follow(view)
        await asyncio.sleep(self._settings.failover_seconds / 8)
        present = await self._arbiter.read()
        if present is None or not is_backup(present, self._me) or not self._backup.is_silent:
            return
        LOG.warning("takes over", task=self._settings.label, epoch=present.epoch + 1)
        await self._arbiter.replace(present, alone(present, self._me))

    async def _lead(self, view: View) -> None:
        state = await self._own_state()
        log = self._logged(state)
        self._primary = Primary(self._me, view, state, log, self._arbiter)
        state.ledger.renew_all(state.clock())
        self._host.serve()
        LOG.info("is the primary", task=self._settings.label, epoch=view.epoch)
        try:
            await self._primary.run()
        finally:
            self._position = log.position
            self._primary = None
            self._host.refuse(None)
        if not self._is_leaving:
            LOG.warning("is not the primary any more", task=self._settings.label)
            self._host.adopt(self._host.fresh_state())
            self._begin_anew()

    async def _own_state(self) -> ServerState:
        """Return the state to serve: that which followed a primary, or an empty one."""
        standby = self._backup.standby
        if standby is None:
            return self._host.state
        await standby.finish()
        self._position = standby.position
        self._host.adopt(standby.state)
        return standby.state

    def _logged(self, state: ServerState) -> ReplicatedLog:
        def needed() -> Iterator[int]:
            return chain(state.rounds.records(), state.kept.records())

        log = ReplicatedLog(self._position, None, needed, self._settings.label)
        state.changes.log = log
        return log

    async def answer(self, channel: Channel[FollowResponse, FollowRequest]) -> None:
        """Let another replica follow this one, if this one leads.

        Raises:
            UnavailableError: It does not lead.
            FailedPreconditionError: The other one cannot be a backup of this one.
            StratagemError: What has ended the call.
        """
        introduction = (await channel.receive()).introduction
        check_handshake(introduction.asking, self._settings)
        self._require_fitting(introduction)
        if self._primary is None:
            raise UnavailableError(f"{self._settings.label} at {self._me.address} does not lead")
        await self._primary.follow(introduction.replica, channel)

    def _require_fitting(self, introduction: Introduction) -> None:
        settings, replica = self._settings, introduction.replica
        label = f"/job:{introduction.asking.task.job}/task:{introduction.asking.task.index}"
        if label != settings.label:
            raise FailedPreconditionError(
                f"{label} at {replica.address} cannot be the backup of {settings.label}; give both "
                "the same --task, and each task an arbiter entry of its own"
            )
        if replica.index == settings.replica:
            raise FailedPreconditionError(
                f"two processes of {settings.label} have --replica {replica.index}; give each "
                "another number"
            )
        if introduction.kernels != self._kernels:
            raise FailedPreconditionError(
                f"the replica at {replica.address} has {described(introduction.kernels)}, but the "
                f"primary {described(self._kernels)}, which may compute other bits; start both "
                "alike"
            )
        if introduction.durability != settings.durability:
            raise FailedPreconditionError(
                f"the replica at {replica.address} has --durability {introduction.durability}, but "
                f"the primary {settings.durability}; start both alike"
            )

    async def leave(self) -> None:
        """Leave the task to the other replica, if that has everything."""
        self._is_leaving = True
        if self._primary is not None:
            await self._primary.leave()

    def report(self) -> ReplicationStatus:
        """Return the message that describes it."""
        status = ReplicationStatus(replica=self._me, standing=self._standing())
        view = self._primary.view if self._primary else self._view
        if view is not None:
            status.view.CopyFrom(view)
        if self._primary is not None:
            self._primary.fill(status)
        else:
            self._backup.fill(status)
        return status

    def _standing(self) -> Standing.ValueType:
        if self._primary is not None:
            return self._primary.standing
        is_in_view = self._view is not None and is_backup(self._view, self._me)
        return Standing.STANDING_BACKUP if is_in_view else Standing.STANDING_CATCHING_UP
