"""Bringing an empty server to the state after an image and the records behind it."""

from __future__ import annotations

from types import TracebackType

from typing_extensions import Self

from stratagem_proto.errors import DataLossError
from stratagem_proto.log.segments import Record
from stratagem_psserver.persistence.images import Image
from stratagem_psserver.persistence.replay import Replay
from stratagem_psserver.persistence.retention import RetainedRecords
from stratagem_psserver.state import ServerState


class Recovery:
    """Applies records behind an image, in a context after which the server may be used.

    Args:
        state: The state of the server, which is empty and which nobody uses yet.
        image: The image; None if the records are all that there is.
        retained: Notes what an image of the state may lack; None if nobody needs to know.
    """

    def __init__(
        self, state: ServerState, image: Image | None, retained: RetainedRecords | None = None
    ) -> None:
        self._state, self._image, self._retained = state, image, retained
        self._replay = Replay(state)
        self._last = image.position if image else 0
        self._needed = {*image.exact["records"]} if image else set()
        self._is_complete = False

    async def __aenter__(self) -> Self:
        if self._image is not None:
            await self._image.restore(self._state)
            self._state.changes.replayed = self._image.position
        await self._replay.__aenter__()
        if not self._needed:
            self._complete()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._require_all()
            self._complete()
        await self._replay.__aexit__(kind, error, traceback)

    async def add(self, record: Record) -> None:
        """Apply a record, or only what the image lacks of it.

        Raises:
            DataLossError: It does not have the effect that it had before.
        """
        if record.position > self._last:
            self._complete()
            await self._replay.apply(record)
        elif record.position in self._needed:
            await self._replay.apply_part(record)
            self._needed.discard(record.position)
            if not self._needed:
                self._complete()
        if self._retained is not None:
            self._retained.note(record)

    def _require_all(self) -> None:
        """Check that all records have come that the image lacks.

        Raises:
            DataLossError: The log has lost one.
        """
        if self._needed:
            raise DataLossError(
                f"the log of {self._state.settings.label} has no record {min(self._needed)}, which "
                "its image lacks: it has lost its end. Restore the files from a backup, or move "
                "the folder away and restore a checkpoint"
            )

    def _complete(self) -> None:
        """Go on from the image, once the contributions that it lacks are there."""
        if self._image is not None and not self._is_complete:
            self._state.rounds.complete_groups(self._image.exact["groups"])
        self._is_complete = True
