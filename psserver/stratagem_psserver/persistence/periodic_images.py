"""Images of a server's state at intervals, without a log."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Hashable
from pathlib import Path

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.protocol import RUN_BYTES
from stratagem_proto.server_log import LOG
from stratagem_psserver.checkpoints.continuation import resume_as_another_run
from stratagem_psserver.persistence.folder import StateFolder
from stratagem_psserver.persistence.images import Moment, read_image, take_image
from stratagem_psserver.state import ServerState

# The longest time for the last image; without it the next start goes on from the one before.
_LEAVING_SECONDS = 60.0


class PeriodicImages:
    """Images of a server's state, one at each interval and one at its end.

    A server that was stopped in order goes on as the same one, since nothing is lost. One that was
    killed goes on with its last image, as if that were a checkpoint: to clients it is another one.

    Args:
        state: The state of the server, which is empty.

    Raises:
        InvalidArgumentError: The folder cannot be used.
        FailedPreconditionError: Another process uses it, or it has a log.
        DataLossError: What is there is damaged.
    """

    def __init__(self, state: ServerState) -> None:
        settings = state.settings
        if not settings.durability_folder:
            raise InvalidArgumentError(
                f"{settings.label} is to keep snapshots, but has no folder for them; name one on "
                "a disk by --durability-folder"
            )
        self._state, self._label = state, settings.label
        root, name = Path(settings.durability_folder), f"{settings.job}-{settings.task}"
        self._folder = StateFolder(root, name, settings.label)
        try:
            self._image = read_image(self._folder, settings)
            self._is_exact = self._image is not None and self._folder.was_left_in_order
            if self._image is not None and self._is_exact:
                state.incarnation = bytes.fromhex(self._image.exact["incarnation"])
        except BaseException:
            self._folder.release()
            raise
        self._imaging: asyncio.Task[Moment | None] | None = None
        self._imaged: Hashable = None
        self._due = 0.0

    @property
    def has_state(self) -> bool:
        """Whether the folder has the state of an earlier process."""
        return self._image is not None

    async def recover(self) -> None:
        """Go on from the last image, if there is one.

        Raises:
            DataLossError: It is damaged.
            OSError: The disk does not take that the server runs.
        """
        if self._image is not None:
            if self._is_exact:
                await self._image.restore(self._state)
                self._state.ledger.renew_all(self._state.clock())
            else:
                resume_as_another_run(self._state, self._image.checkpoint, has_all=False)
            LOG.info("recovered", task=self._label, lost_nothing=self._is_exact)
        # An older copy of the image does not know of this run.
        self._state.changes.history.begin_unrecorded(secrets.token_bytes(RUN_BYTES))
        # From here on the image is of the past.
        self._folder.enter()
        self._imaged = self._fingerprint()
        self._plan_next()

    def _plan_next(self) -> None:
        self._due = self._state.clock() + self._state.settings.snapshot_seconds

    def tend(self) -> None:
        """Begin an image if it is time and something has changed; called now and then."""
        is_idle = self._imaging is None or self._imaging.done()
        if is_idle and self._state.clock() >= self._due:
            self._plan_next()
            if self._fingerprint() != self._imaged:
                self._imaging = asyncio.ensure_future(self._take_image())

    def _fingerprint(self) -> Hashable:
        """Return what differs after each change, since each is a request with a number."""
        sessions = self._state.ledger.sessions()
        return tuple((each.id, each.numbering.last) for each in sessions)

    async def _take_image(self) -> Moment | None:
        imaged = self._fingerprint()
        moment = await take_image(self._state, self._folder.images)
        if moment is not None:
            self._imaged = imaged
        return moment

    async def close(self) -> None:
        """Leave an image, so that the next start goes on where this one ends."""
        if self._imaging is not None:
            await asyncio.wait([self._imaging])
        leaving = asyncio.ensure_future(self._take_image())
        await asyncio.wait([leaving], timeout=_LEAVING_SECONDS)
        moment = leaving.result() if leaving.done() else None
        # Gradients of a step that is not complete are in no image.
        if moment is not None and moment.needed:
            self._folder.leave()
        self.release()

    def release(self) -> None:
        """Let other processes use the folder; a repetition does nothing."""
        self._folder.release()
