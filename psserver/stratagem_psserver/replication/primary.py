"""The replica that serves: no answer leaves before its backup has what it tells of."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress

from stratagem_proto.errors import (
    FailedPreconditionError,
    NotPrimaryError,
    StratagemError,
    UnavailableError,
)
from stratagem_proto.v1.replication_pb2 import (
    FollowRequest,
    FollowResponse,
    ImageBegin,
    Introduction,
    Replica,
    ReplicationStatus,
    Standing,
    View,
)
from stratagem_proto.wire.tensors import nbytes_of
from stratagem_psserver.persistence.images import Moment, image_files, moment_of
from stratagem_psserver.persistence.replay import Placed
from stratagem_psserver.replication.arbiter import Arbiter
from stratagem_psserver.replication.backup_link import BackupLink, reason_of
from stratagem_psserver.replication.exchange import Alarm, Channel, Pace, image_messages
from stratagem_psserver.replication.replicated_log import ReplicatedLog
from stratagem_psserver.replication.verification import Verification
from stratagem_psserver.replication.views import alone, handed_over, is_primary, with_backup
from stratagem_psserver.state import ServerState
from stratagem_rpc.server_log import LOG

_RETRY_SECONDS = 0.1

# How often a primary asks whether it still is the one, which only a wrong deployment can change.
_CONFIRM_SECONDS = 5.0


class Leadership:
    """The view of a primary, which only the arbiter replaces.

    Attributes:
        view: The present view.
        until: When to ask no more: a replica that leaves need not know for ever.
    """

    def __init__(
        self, me: Replica, view: View, arbiter: Arbiter, label: str, clock: Callable[[], float]
    ) -> None:
        self.view, self.until = view, math.inf
        self._me, self._arbiter, self._label, self._clock = me, arbiter, label, clock
        self._confirm_at = clock() + _CONFIRM_SECONDS

    async def propose(self, following: View, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        """Ask for a view until there is an answer; return whether it is known to be granted.

        Args:
            following: The view.
            is_wanted: Whether to ask again. What is wanted no more may have been granted.
        """
        while True:
            try:
                granted = await self._arbiter.replace(self.view, following)
                # An earlier attempt may have been granted, and only the answer was lost.
                if granted or await self._arbiter.read() == following:
                    self.view = following
                    return True
                return False
            except UnavailableError as error:
                LOG.warning("the arbiter does not answer", task=self._label, why=error.message)
            if self._clock() >= self.until:
                return False
            await asyncio.sleep(_RETRY_SECONDS)
            if not is_wanted():
                return False

    async def confirm(self) -> bool:
        """Ask now and then whether the replica still leads; return False if it does not."""
        if self._clock() < self._confirm_at:
            return True
        self._confirm_at = self._clock() + _CONFIRM_SECONDS
        with suppress(UnavailableError):
            present = await self._arbiter.read()
            return present is not None and is_primary(present, self._me)
        return True


async def send_image(state: ServerState, log: ReplicatedLog, link: BackupLink) -> None:
    """Send an image to a backup that gets all further records, and what the image lacks.

    No disk has the image: to write and read it took 0.42 of the 1.41 s of a processor in which 250
    MB were sent.
    """
    moment, needed = await _moment_for(state, log)
    link.begin_after(moment.position)
    try:
        files = image_files(moment, state.settings.task)
        nbytes = sum(nbytes_of(content.tensor) for content in moment.snapshot.contents)
        begin = ImageBegin(position=moment.position, nbytes=nbytes)
        await link.send_image(image_messages(files, begin))
    finally:
        state.snapshots.close(moment.snapshot)
    await link.send_needed(needed)


async def _moment_for(state: ServerState, log: ReplicatedLog) -> tuple[Moment, Sequence[Placed]]:
    """Return a moment for an image, and the records that such an image lacks.

    Contributions to steps that are not complete are in no image.
    """
    while True:
        moment = await moment_of(state)
        if moment is not None:
            # At once, before another request is over and its record is not retained any more.
            needed = log.retained.find(moment.facts["exact"]["records"])
            if needed is not None:
                return moment, needed
            state.snapshots.close(moment.snapshot)
        await asyncio.sleep(_RETRY_SECONDS)


# The part of `failover_seconds` for which a beacon allows answers; the rest is for clocks that run
# at different speeds.
_LEASE = 0.75

# For how long after the lease a primary waits until it goes on without a backup that is silent, in
# `failover_seconds`. Of two that do not hear each other but reach the arbiter, the backup is
# to be first: it may be the primary that is cut off, from all clients as well.
_ALONE_AFTER = 1.5

# Looks at the backup within a lease.
_LOOKS = 8

# A backup that lacks no more records than this is waited for; then answers wait for it, too.
_MOST_BEHIND = 1000

# For so long a replica that is stopped asks an arbiter that does not answer.
_LEAVE_SECONDS = 3.0


class Primary:
    """Leads a task from one view to the next, until the arbiter has another primary.

    Attributes:
        trouble: Why there is no backup; "" if there is one.
    """

    def __init__(
        self,
        me: Replica,
        view: View,
        state: ServerState,
        log: ReplicatedLog,
        arbiter: Arbiter,
        obstacle: Callable[[], str],
    ) -> None:
        # Of a task that moves, nobody has asked for one.
        self.trouble = "" if state.settings.is_movable else "no backup has come yet"
        self._me, self._state, self._log, self._obstacle = me, state, log, obstacle
        self._clock = state.clock
        self._leadership = Leadership(me, view, arbiter, self._label, self._clock)
        self._patience = state.settings.failover_seconds
        self._glance = self._patience / _LOOKS
        self._link: BackupLink | None = None
        # The one that has to have all that answers tell of.
        self._required: BackupLink | None = None
        # A backup that the view names may still come back until then.
        self._awaited_until = self._clock() + self._patience
        self._changed, self._has_ended = Alarm(), asyncio.Event()
        # Whether something waits for what the backup acknowledges, besides answers.
        self._counts_progress = False
        self._is_leaving = self._is_fenced = self._is_over = False
        self._verification = Verification(state, log)
        log.may_answer = self._may_answer
        # No record says what has changed, so that another image is sent.
        log.on_leap = self._close_link
        self._log_if_needed()

    @property
    def view(self) -> View:
        return self._leadership.view

    def _log_if_needed(self) -> None:
        """Record changes while somebody needs the records: to copy large updates takes long.

        Requests that have begun before are in the image for whoever comes.
        """
        changes, log = self._state.changes, self._log
        # The arbiter may have granted a backup that was asked for, and that has left since. Of a
        # primary whose time is over, whoever has not been answered yet is told so by its log.
        has_backup = self._required is not None or self.view.HasField("backup")
        is_needed = self._link is not None or has_backup or self._is_over or log.disk is not None
        if is_needed or not self._state.settings.is_movable:
            changes.log = log
        else:
            changes.log, changes.replayed = None, log.position
            log.retained.forget()

    def _may_answer(self, position: int) -> bool:
        """Return whether answers may leave that tell of records up to a position."""
        required = self._required
        if self._is_fenced:
            return False
        if required is None:
            # Nobody else can become the primary of a view without a backup.
            return not self.view.HasField("backup")
        return required.acknowledged >= position and required.lease.is_valid(self._clock())

    @property
    def standing(self) -> Standing:
        """What the replica is at present."""
        is_free = self._may_answer(0)
        return Standing.STANDING_PRIMARY if is_free else Standing.STANDING_FENCED

    def fill(self, status: ReplicationStatus) -> None:
        """Fill in what a primary knows of its backup."""
        status.trouble = self.trouble
        if self._link is not None:
            status.behind = max(self._log.position - self._link.acknowledged, 0)
            status.silent_seconds = self._link.lease.silence(self._clock())
        status.verified = self._verification.verified

    async def run(self) -> None:
        """Lead until the arbiter has another primary; then nothing is answered any more."""
        try:
            while await self._adjust():
                await self._changed.wait(self._glance)
        finally:
            self._is_over = True
            self._log_if_needed()
            why = (
                f"{self._label} is served by another replica now; nothing of the request was "
                "acknowledged, so repeat it there"
            )
            # Without a move, the request may be what has ended this primary for its backup.
            is_movable = self._state.settings.is_movable
            error = NotPrimaryError(why) if is_movable else UnavailableError(why)
            if isinstance(error, NotPrimaryError) and not is_primary(self.view, self._me):
                error.primary, error.epoch = self.view.primary.address, self.view.epoch
            self._log.end(error)
            if self._link is not None:
                self._link.close()
            self._has_ended.set()

    async def _adjust(self) -> bool:
        """Bring the view in line with whether the backup follows; return whether to go on."""
        if self._is_leaving:
            return await self._hand_over()
        if self.view.HasField("backup") and self._has_lost_backup():
            return await self._go_on_alone()
        link, required = self._link, self._required
        if required is not None and required is link and required.takes_over:
            return await self._hand_over()
        may_take_on = link is not None and required is None and self._can_take_on(link)
        if link is not None and may_take_on and not (link.takes_over and self._is_held_back()):
            return await self._take_on(link)
        self._verification.tend(self._required)
        return await self._leadership.confirm()

    async def leave(self) -> None:
        """Leave the task to the backup, if there is one that has everything; `run` then ends."""
        self._is_leaving = True
        self._leadership.until = self._clock() + _LEAVE_SECONDS
        self._changed.set()
        await self._has_ended.wait()

    async def _hand_over(self) -> bool:
        required = self._required
        if required is None or not await self._acknowledges(required, self._log.position):
            return not self._is_leaving
        # What is begun after this is not answered any more.
        if not self._is_leaving and (self._is_held_back() or not self._follows(required)):
            return True
        # From the next view on the other one answers.
        self._is_fenced = was_heard = True

        def is_heard() -> bool:
            nonlocal was_heard
            was_heard = was_heard and self._follows(required)
            return was_heard

        if not self._is_leaving and not await self._is_there(required):
            return await self._keep()
        LOG.info("hands over", task=self._label, to=required.replica.address)
        if await self._leadership.propose(handed_over(self.view), is_heard):
            await required.hand_over(self.view)
            return False
        # One that was not heard for a while is not asked for again, also if it is heard by now.
        return not is_heard() and await self._keep()

    def _follows(self, required: BackupLink) -> bool:
        """Return whether a backup is still to take over.

        One that was heard of for the last time a while ago may have ended, and the task with it.
        But when the primary leaves, only its backup has what clients were told.
        """
        lives = required is self._link and required.lease.is_valid(self._clock())
        return self._is_leaving or lives

    async def _keep(self) -> bool:
        """Go on alone, as the backup has left, or is silent, before it was granted the task."""
        is_kept = await self._go_on_alone()
        self._is_fenced = not is_kept
        self._log.progressed()
        return is_kept

    def _has_lost_backup(self) -> bool:
        required, now = self._required, self._clock()
        if required is None:
            return self._link is not None or now >= self._awaited_until
        if required is not self._link:
            return True
        if required.lease.is_valid(now):
            self._awaited_until = now + self._patience * _ALONE_AFTER
        return now >= self._awaited_until

    def _can_take_on(self, link: BackupLink) -> bool:
        """Return whether a backup is close behind, and was heard of just now.

        One that is suspended has a connection as well, and answers would wait for it in vain.
        """
        is_close = 0 <= link.acknowledged >= self._log.position - _MOST_BEHIND
        return is_close and link.lease.is_valid(self._clock())

    def _is_held_back(self) -> bool:
        """Return whether the task must not move at the moment, and note why."""
        self.trouble = self._obstacle()
        return bool(self.trouble)

    async def _go_on_alone(self) -> bool:
        LOG.warning(
            "goes on without a backup", task=self._label, why=self.trouble or "it is silent"
        )
        if not await self._leadership.propose(alone(self.view, self._me)):
            return False
        self._release_required()
        return True

    async def _take_on(self, link: BackupLink) -> bool:
        """Have a backup that has caught up take part in each answer."""
        self._required = link
        # What was answered without it until now must be there, too, before it may take over.
        if not await self._acknowledges(link, self._log.position):
            self._release_required()
            return True
        if not await self._leadership.propose(with_backup(self.view, link.replica)):
            return False
        # The arbiter may have taken longer than the lease lasts.
        self._awaited_until = self._clock() + self._patience * _ALONE_AFTER
        self.trouble = ""
        LOG.info("has a backup", task=self._label, backup=link.replica.address)
        self._log.progressed()
        return True

    def _release_required(self) -> None:
        self._required = None
        self._log.progressed()
        self._log_if_needed()

    async def _is_there(self, link: BackupLink) -> bool:
        """Return whether a backup answers now, and not only did so at its last beacon."""
        now = self._clock()
        link.beat()
        return await self._comes(link, lambda: link.lease.was_heard_since(now))

    async def _acknowledges(self, link: BackupLink, position: int) -> bool:
        return await self._comes(link, lambda: link.acknowledged >= position)

    async def _comes(self, link: BackupLink, has_come: Callable[[], bool]) -> bool:
        until, self._counts_progress = self._clock() + self._patience, True
        while link is self._link and not has_come() and self._clock() < until:
            await self._changed.wait(self._glance)
        self._counts_progress = False
        return link is self._link and has_come()

    @property
    def _label(self) -> str:
        return self._state.settings.label

    async def follow(
        self, other: Introduction, channel: Channel[FollowResponse, FollowRequest]
    ) -> None:
        """Let a backup, which has introduced itself, follow until one of the two ends it.

        Raises:
            FailedPreconditionError: Another one follows.
            StratagemError: What has ended it.
        """
        replica, lease = other.replica, self._patience * _LEASE
        present = self._link
        if (
            present is not None
            and present.lease.is_valid(self._clock())
            and present.replica.instance != replica.instance
        ):
            raise FailedPreconditionError(
                f"the replica at {present.replica.address} follows {self._label} already; stop one "
                "of the two"
            )
        link = BackupLink(replica, channel, lambda: self.view, lease, self._clock, self._progressed)
        link.takes_over, link.pace = other.takes_over, Pace(other.bytes_per_second, self._clock)
        self._close_link()
        self._link = link
        self._log.follower = link
        self._log_if_needed()
        self._changed.set()
        self.trouble = f"the replica at {replica.address} is catching up"
        try:
            await link.run(self._send_all(link))
        except (StratagemError, OSError) as error:
            self.trouble = f"the replica at {replica.address}: {reason_of(error)}"
            raise
        finally:
            # Whoever waits for what the backup tells is to wait no more.
            link.close()
            if self._link is link:
                self._link = None
                self._log.follower = None
                self._awaited_until = self._clock()
                self._log_if_needed()
            self._progressed()

    def _close_link(self) -> None:
        if self._link is not None:
            self._link.close()

    def _progressed(self) -> None:
        self._log.progressed()
        # Of each update there is an acknowledgement, after which mostly nothing is to be done here.
        if self._counts_progress or self._required is not self._link:
            self._changed.set()

    async def _send_all(self, link: BackupLink) -> None:
        # The backup drops what it has for the image, so nobody may rely on that any more.
        while self.view.HasField("backup"):
            await asyncio.sleep(self._glance)
        await send_image(self._state, self._log, link)
        await link.send_records()
