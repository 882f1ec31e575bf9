"""One replica of a task: it leads or follows, as the arbiter decides."""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import suppress
from typing import Protocol

from stratagem_proto.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    StratagemError,
    UnavailableError,
)
from stratagem_proto.protocol import RUN_BYTES, SESSION_ID_BYTES
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
from stratagem_proto.v1.session_pb2 import Task
from stratagem_psserver.persistence.persistence import described
from stratagem_psserver.persistence.replay import RetainedRecords
from stratagem_psserver.replication.arbiter import Arbiter
from stratagem_psserver.replication.backup import Backup
from stratagem_psserver.replication.calls import handshake_of
from stratagem_psserver.replication.exchange import Channel, Peers
from stratagem_psserver.replication.primary import Primary
from stratagem_psserver.replication.replicated_log import ReplicatedLog
from stratagem_psserver.replication.standby import ReplicaDisk
from stratagem_psserver.replication.views import (
    Follow,
    Lead,
    Propose,
    StandAside,
    alone,
    is_backup,
    next_move,
    predecessors,
)
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState
from stratagem_rpc.server_log import LOG


class Host(Protocol):
    """A server whose state can be exchanged, and which answers clients or refuses them."""

    @property
    def state(self) -> ServerState:
        """The state that clients have access to while they are answered."""

    def fresh_state(self) -> ServerState:
        """Return another state, which is empty and which no client has access to."""

    def adopt(self, state: ServerState) -> None:
        """Replace the state by another one; whoever waits in the former is refused."""

    def obstacle(self) -> str:
        """Return what would be lost if another server went on with the state; "" if nothing."""

    def serve(self) -> None:
        """Answer clients from now on."""

    def refuse(self) -> None:
        """Refuse clients from now on, and tell them where the primary is."""


def introduction_of(settings: ServerSettings, replica: Replica, kernels: Kernels) -> Introduction:
    return Introduction(
        asking=handshake_of(settings),
        replica=replica,
        kernels=kernels,
        durability=settings.durability,
        failover_seconds=settings.failover_seconds,
        takes_over=settings.is_movable,
        arbiter=same_for_all(settings.arbiter),
        task=Task(job=settings.job, index=settings.task),
    )


def same_for_all(arbiter: str) -> str:
    """Return an --arbiter in the form in which all that mean the same one agree.

    A file may be named from another folder, and the members of etcd in another order.
    """
    scheme, _, place = arbiter.partition(":")
    if scheme == "file":
        return f"file:{os.path.abspath(place)}"
    if scheme == "etcd":
        members, _, prefix = place.partition("/")
        return f"etcd:{','.join(sorted(members.split(',')))}/{prefix}"
    return arbiter


def _task_of(introduction: Introduction) -> Task:
    return introduction.task if introduction.HasField("task") else introduction.asking.task


def require_fitting(other: Introduction, own: Introduction, settings: ServerSettings) -> None:
    """Raise FailedPreconditionError unless another replica can be the backup of this one."""
    where = f"the replica at {other.replica.address}"
    if (task := _task_of(other)) != _task_of(own):
        raise FailedPreconditionError(
            f"{where} is of /job:{task.job}/task:{task.index}, and cannot be the backup of "
            f"{settings.label}; give both the same --task, and each task another arbiter"
        )
    if other.replica.index == own.replica.index:
        option = "--task" if settings.is_movable else "--replica"
        raise FailedPreconditionError(
            f"{where} has {option} {own.replica.index} as the primary of {settings.label} has; "
            "give each another number"
        )
    if other.kernels != own.kernels:
        raise FailedPreconditionError(
            f"{where} has {described(other.kernels)}, but the primary {described(own.kernels)}, "
            "which may compute other bits; start both alike"
        )
    for option, its, ours in (
        ("--durability", other.durability, own.durability),
        ("--failover-seconds", f"{other.failover_seconds:g}", f"{own.failover_seconds:g}"),
    ):
        if its != ours:
            raise FailedPreconditionError(
                f"{where} has {option} {its}, but the primary {ours}; start both alike"
            )
    if other.arbiter not in ("", own.arbiter):
        raise FailedPreconditionError(
            f"{where} has --arbiter {other.arbiter}, but the primary {own.arbiter}, so both could "
            "come to serve; give both the same"
        )


# A replica that was refused waits longer until it asks again, since somebody has to do something.
_REFUSED_PAUSES = 16


class ReplicatedTask:
    """Takes part in the replication of a task until it has left or is cancelled."""

    def __init__(
        self,
        host: Host,
        arbiter: Arbiter,
        peers: Peers,
        introduction: Introduction,
        disk: ReplicaDisk | None = None,
    ) -> None:
        self._host, self._arbiter, self._peers, self._disk = host, arbiter, peers, disk
        self._introduction = introduction
        self._settings, self._environment = host.state.settings, host.state.environment
        self._view: View | None = None
        self._primary: Primary | None = None
        self._is_leaving = False
        # Whether the task is to move to this server.
        self._is_invited = False
        self._invited = asyncio.Event()
        self._take_identity(disk.folder.replica if disk else None)

    def _take_identity(self, kept: Replica | None = None) -> None:
        """Be the replica whose state the disk has, or one that has none to rely on."""
        me = self._introduction.replica
        me.instance = kept.instance if kept else self._environment.random_bytes(SESSION_ID_BYTES)
        # Whether a run of another process had the same state.
        self._goes_on = kept is not None
        fresh, clock = self._host.fresh_state, self._environment.clock
        self._backup = Backup(
            self._introduction, self._settings, fresh, self._peers, self._disk, clock
        )

    @property
    def replica(self) -> Replica:
        """The replica, with the state that it has now."""
        return self._introduction.replica

    async def run(self) -> None:
        """Lead and follow by turns."""
        while not self._is_leaving:
            try:
                self._view = await self._arbiter.read()
                await self._take_part(self._view)
            except StratagemError as error:
                self._backup.note(error.message)
            except Exception as error:
                # Whatever it was, others are not to wait for this replica.
                LOG.error("cannot take part", task=self._settings.label, exc_info=error)
            else:
                continue
            await self._pause()

    async def _pause(self, times: int = 1) -> None:
        await asyncio.sleep(times * self._settings.failover_seconds / 8)

    async def _take_part(self, view: View | None) -> None:
        if view is None and self._settings.server_number != self._settings.task:
            raise FailedPreconditionError(
                f"the arbiter knows nothing of {self._settings.label}, which began on another "
                "server; give this server the arbiter that the others have"
            )
        if view is None and self._disk is not None and self._disk.folder.replica is not None:
            raise FailedPreconditionError(
                f"{self._settings.label} has state of earlier views on its disk, but the arbiter "
                "knows of none; give it the arbiter that it had, or move its folder away"
            )
        match next_move(view, self.replica, self._follows):
            case Propose(present, following):
                await self._require_only(present)
                await self._arbiter.replace(present, following)
            case Lead(present):
                await self._lead_again(present)
            case Follow(present):
                await self._follow(present)
            case StandAside(present):
                await self._stand_aside(present)

    @property
    def _follows(self) -> bool:
        """Whether it is to get the state of the task, if it has not got it."""
        return self._is_invited or not self._settings.is_movable

    async def _stand_aside(self, view: View) -> None:
        # Until there is another view than that in which it has followed, the next one may name it.
        if self._backup.standby is not None and view.epoch > self._backup.view.epoch:
            self._backup.discard()
            self._take_identity()
        with suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(self._invited.wait(), self._settings.failover_seconds)

    async def take_over(self, seconds: float, bytes_per_second: int = 0) -> View:
        """Have the task move to this server, and return the view in which it serves it.

        Args:
            seconds: The longest time until it has the state of the task.
            bytes_per_second: The most bytes of values to be sent, and then to be loaded, in a
                second; 0 for as many as possible.

        Raises:
            FailedPreconditionError: The server that has the task refuses this one.
            DeadlineExceededError: It takes longer; the task stays where it is.
        """
        if not self.serves:
            self._introduction.bytes_per_second = bytes_per_second
            self._backup.is_refused, self._is_invited = False, True
            self._invited.set()
            try:
                await self._until_serving(self._environment.clock() + seconds)
            finally:
                self._is_invited, self._introduction.bytes_per_second = False, 0
                self._invited.clear()
                if self._primary is None:
                    self._backup.withdraw()
        assert self._primary is not None
        return self._primary.view

    async def _until_serving(self, until: float) -> None:
        while not self.serves:
            if self._backup.is_refused:
                raise FailedPreconditionError(self._backup.trouble)
            # From the view on that names it as the backup, it may have to take over.
            if self._environment.clock() >= until and not self._is_named:
                raise DeadlineExceededError(
                    f"{self._settings.label} has not moved to {self.replica.address} in time, and "
                    f"stays where it is: {self._backup.trouble or 'its state had not come'}"
                )
            await self._pause()

    @property
    def serves(self) -> bool:
        return self._standing() == Standing.STANDING_PRIMARY

    @property
    def _is_named(self) -> bool:
        return self.view is not None and is_backup(self.view, self.replica)

    async def _require_only(self, view: View | None) -> None:
        """Check that no other process has the number of this replica."""
        for former in predecessors(view, self.replica):
            if former.address == self.replica.address:
                continue
            if await self._peers.instance_at(former.address) == former.instance:
                raise FailedPreconditionError(
                    f"the process at {former.address} has --replica {former.index} of "
                    f"{self._settings.label}, too; stop one of the two, or give it another number"
                )

    async def _follow(self, view: View) -> None:
        self._host.refuse()
        if view.HasField("primary"):
            await self._backup.follow(view)
            if self._backup.may_lead:
                return
        await self._pause(_REFUSED_PAUSES if self._backup.is_refused else 1)
        present = await self._arbiter.read()
        if present is None or not is_backup(present, self.replica) or not self._backup.is_silent:
            return
        LOG.warning("takes over", task=self._settings.label, epoch=present.epoch + 1)
        await self._arbiter.replace(present, alone(present, self.replica))

    async def _lead_again(self, view: View) -> None:
        """Be the primary of a view, which the run before may have known."""
        if self._goes_on and not view.HasField("backup"):
            # That run may have asked for a backup, which the arbiter may still grant, but in this
            # view alone. The backup would lack what is answered meanwhile, and might take over.
            following = alone(view, self.replica)
            if not await self._arbiter.replace(view, following):
                return
            view = following
        self._goes_on = False
        await self._lead(view)

    async def _lead(self, view: View) -> None:
        await self._backup.until_free()
        state = await self._own_state()
        log = self._begin_log(state)
        obstacle = self._host.obstacle
        self._primary = Primary(self.replica, view, state, log, self._arbiter, obstacle)
        state.ledger.renew_all(state.clock())
        self._host.serve()
        LOG.info("is the primary", task=self._settings.label, epoch=view.epoch)
        try:
            await self._primary.run()
        finally:
            self._view, self._primary = self._primary.view, None
            self._host.refuse()
        if not self._is_leaving:
            # Of a task that moves, somebody has wanted it.
            note = LOG.info if self._settings.is_movable else LOG.warning
            note("is not the primary any more", task=self._settings.label)
            self._host.adopt(self._host.fresh_state())
            self._take_identity()

    def _begin_log(self, state: ServerState) -> ReplicatedLog:
        """Return the log of a run that begins now, with the records that an image may lack."""
        disk = self._disk
        if standby := self._backup.standby:
            retained = standby.retained
        else:
            retained = (disk.retained if disk else None) or RetainedRecords(state)
        on_disk = disk.log if disk else None
        position = on_disk.position if on_disk else state.changes.last
        if disk is not None:
            disk.persistence.begin_run()
        else:
            state.changes.history.begin(secrets.token_bytes(RUN_BYTES), position)
        return ReplicatedLog(position, on_disk, retained, self._settings.label)

    async def _own_state(self) -> ServerState:
        """Return the state to serve: one that has followed a primary, or that of the host."""
        if standby := self._backup.standby:
            await standby.finish()
            self._host.adopt(standby.state)
        elif self._disk is not None:
            self._disk.folder.belong(self.replica)
        return self._host.state

    async def answer(self, call: Channel[FollowResponse, FollowRequest]) -> None:
        """Let another replica follow this one, if this one leads.

        Raises:
            UnavailableError: It does not lead.
            FailedPreconditionError: The other one cannot be a backup of this one.
            StratagemError: What has ended the call.
        """
        other = (await call.receive()).introduction
        require_fitting(other, self._introduction, self._settings)
        if self._primary is None:
            raise UnavailableError(
                f"{self._settings.label} at {self.replica.address} does not lead"
            )
        await self._primary.follow(other, call)

    async def leave(self) -> None:
        """Leave the task to the other replica, if that has everything."""
        self._is_leaving = True
        if self._primary is not None:
            await self._primary.leave()

    async def close(self) -> None:
        """Apply what has come, so that the state is that of a position of the log."""
        if standby := self._backup.standby:
            await standby.finish()

    @property
    def primary(self) -> tuple[str, int]:
        """The address of another replica that serves, and its epoch; "" and 0 if there is none."""
        view = self.view
        if view is None or not view.HasField("primary") or view.primary.index == self.replica.index:
            return "", 0
        return view.primary.address, view.epoch

    def report(self) -> ReplicationStatus:
        status = ReplicationStatus(
            replica=self.replica,
            standing=self._standing(),
            is_movable=self._settings.is_movable,
        )
        if self.view is not None:
            status.view.CopyFrom(self.view)
        (self._primary or self._backup).fill(status)
        return status

    @property
    def view(self) -> View | None:
        """The last view that is known; None before there is one."""
        if self._primary is not None:
            return self._primary.view
        told = self._backup.view
        return told if self._view is None or told.epoch > self._view.epoch else self._view

    @property
    def has_place(self) -> bool:
        """Whether it serves, or is the backup that may take over."""
        return self._standing() in (Standing.STANDING_PRIMARY, Standing.STANDING_BACKUP)

    def _standing(self) -> Standing:
        if self._primary is not None:
            return self._primary.standing
        return Standing.STANDING_BACKUP if self._is_named else Standing.STANDING_CATCHING_UP
