"""The state of a backup: that of an image, and of the records behind it as they come."""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stratagem_proto.errors import DataLossError
from stratagem_proto.v1.log_pb2 import LogRecord
from stratagem_proto.v1.replication_pb2 import ImagePiece, StateDigest
from stratagem_psserver.log.log import Log
from stratagem_psserver.persistence.folder import StateFolder
from stratagem_psserver.persistence.images import Image, Moment, Throttle, image_at, moment_of
from stratagem_psserver.persistence.persistence import Persistence
from stratagem_psserver.persistence.replay import Recovery, RetainedRecords
from stratagem_psserver.replication.exchange import Arrival, Pace
from stratagem_psserver.replication.verification import digests_beside
from stratagem_psserver.state import ServerState
from stratagem_storage.log import Entry

# So few records to apply are no reason to go on.
_FEW = 16


class CatchingUp:
    """Applies in rounds what has come by the begin of each, as long as rounds become shorter.

    Whoever takes over has to apply first what is left, and clients wait. Where records come as fast
    as they are applied, however, nothing is gained by another round.

    Attributes:
        is_over: Whether little is left, or the last round left more than half of the one before.
        has_time: Whether the first round may be slow: less than a quarter of it has come meanwhile.
    """

    def __init__(self) -> None:
        self.is_over, self.has_time = False, False
        # The records of the present round, and those that are still to be applied.
        self._round = self._left = 0

    def begin(self, waiting: int) -> None:
        """Begin a round with all records that wait, unless it is over."""
        before, self._round, self._left = self._round, waiting, waiting
        self.is_over = waiting <= _FEW or 0 < before < 2 * waiting
        self.has_time = not (before or self.is_over)

    def note_applied(self, waiting: int) -> None:
        """Note that a record was applied, behind which others wait."""
        self._left -= 1
        self.has_time &= 4 * (waiting - self._left) < self._round
        if not self.is_over and self._left <= 0:
            self.begin(waiting)


class ReplicaDisk:
    """The folder of a replica with a log, and what writes the present state there.

    Attributes:
        log: The log of the present state; None before it is complete.
        retained: The records that an image of the state may lack to which `recover` has come.
    """

    def __init__(self, folder: StateFolder, persistence: Persistence) -> None:
        self.folder, self.persistence = folder, persistence
        self.log: Log | None = None
        self.retained: RetainedRecords | None = None

    async def recover(self) -> int:
        """As `Persistence.recover`; return the position of the last change."""
        self.retained = self.persistence.retain()
        await self.persistence.recover()
        self.log = self.persistence.log
        return self.persistence.log.position

    def give_up(self) -> None:
        """Write nothing more of the state, which nobody relies on."""
        self.persistence.stop()
        self.log = self.retained = None

    def clear(self) -> Path:
        """Remove the state, and return the folder for the files of an image."""
        self.give_up()
        self.folder.clear()
        return self.folder.images

    def begin(self, state: ServerState) -> Persistence:
        """Record the changes of a state that begins with the image that is there now.

        First come those that the image lacks, with marks in the places of others.
        """
        self.persistence = Persistence(state, self.folder)
        self.log = self.persistence.begin_copy()
        return self.persistence

    async def close(self) -> None:
        """Leave an image of a complete state, and release the folder."""
        if self.log is None:
            self.folder.release()
        else:
            await self.persistence.close()

    def release(self) -> None:
        self.persistence.release()


# A backup that has so many bytes of records to apply acknowledges no more of them.
_MOST_BYTES = 64 << 20

# After so long, others on the event loop have a turn: the server's other tasks answer clients, and
# a request takes several turns. With a turn after 100 records, as `Replay` has for a server that
# starts, workers paused for up to 0.24 s while a task moved, and now for up to 0.14.
_AT_ONCE_SECONDS = 2e-4

# Where an image has a pace, the first round of records behind it rests for so many times as long as
# it works.
_RESTS = 3


class IncomingImage:
    """An image on its way, whose files are written as their pieces come.

    Args:
        folder: Where its files stay; None for a folder that `close` removes.
    """

    def __init__(self, folder: Path | None) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="stratagem-image-")
            folder = Path(self._temporary.name)
        self._folder = folder

    def add(self, piece: ImagePiece) -> None:
        """Append a piece to its file; raise DataLossError if its path leads out of the folder."""
        if not piece.path:
            return
        parts = piece.path.split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise DataLossError(f"an image has no file {piece.path!r}")
        path = self._folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(piece.data)

    def read(self, task: int) -> Image:
        """Return the image of a task, all of whose pieces have come; DataLossError if damaged."""
        return image_at(self._folder, task)

    def close(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()


def _fill(log: Log, position: int) -> None:
    """Add marks, which change nothing, up to a position."""
    while log.position < position:
        log.append(LogRecord(mark=True))


class Standby:
    """Applies records to a state that nobody uses yet, in the order in which they come.

    Attributes:
        state: The state.
        position: The position of the last record that has come.
        applied: The position of the last one that is applied.
        digest: The digest of the state at the last mark; None before there is one.
        retained: The records that an image of the state may lack.
        is_loaded: Whether the state is that of the image, and of records behind it.
    """

    def __init__(
        self,
        state: ServerState,
        image: Image,
        disk: Persistence | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.state, self._disk, self._pace = state, disk, pace
        self.position = self.applied = image.position
        self._image_position = image.position
        # Records that the image lacks and that have not come yet.
        self._lacking = {*image.exact["records"]}
        state.incarnation = bytes.fromhex(image.exact["incarnation"])
        self._records: deque[Arrival | None] = deque()
        self._nbytes = 0
        self._filled, self._progressed = asyncio.Event(), asyncio.Event()
        self.digest: StateDigest | None = None
        self.retained = RetainedRecords(state)
        self._digesting: asyncio.Task[None] | None = None
        self.is_loaded, self._catching_up = False, CatchingUp()
        throttle = Throttle(pace.wait_after, lambda: not self._has_much_room) if pace else None
        self._applying = asyncio.ensure_future(self._apply(replace(image, throttle=throttle)))
        self._applying.add_done_callback(lambda _: self._progressed.set())

    async def ready(self) -> None:
        """Wait until it has caught up and there is room, or nothing is applied any more."""
        while not ((self._catching_up.is_over and self.has_room) or self._applying.done()):
            self._progressed.clear()
            await self._progressed.wait()

    def require_sound(self) -> None:
        """Raise DataLossError if the image is damaged, or a record has had another effect."""
        if self._applying.done():
            self._applying.result()

    @property
    def has_room(self) -> bool:
        """Whether so little waits to be applied that more may come."""
        return self._nbytes < _MOST_BYTES

    @property
    def _has_much_room(self) -> bool:
        return self._nbytes < _MOST_BYTES // 2

    def add(self, arrivals: Sequence[Arrival]) -> None:
        """Apply records behind all others; those that the image lacks come first."""
        for arrival in arrivals:
            self._records.append(arrival)
            self._nbytes += arrival.entry.nbytes
            position = arrival.record.position
            self._lacking.discard(position)
            self.position = max(self.position, position)
            if self._disk is not None:
                self._write(self._disk.log, position, arrival.entry)
        self._filled.set()

    def _write(self, log: Log, position: int, entry: Entry) -> None:
        """Add a record to the log on disk.

        Records that the image contains need not come, but the log has no gaps.
        """
        _fill(log, position - 1)
        log.add(entry)
        if not self._lacking:
            _fill(log, self._image_position)

    async def kept(self, position: int) -> None:
        """Wait until the record of that position is on disk, if they are to be there."""
        if self._disk is not None:
            await self._disk.log.on_disk(position)

    @property
    def kept_position(self) -> int:
        """The position up to which all records have come, and are on disk if they are to be."""
        return self.position if self._disk is None else self._disk.log.written

    @property
    def is_complete(self) -> bool:
        """Whether it has caught up, and what the image lacks has come, to disk if it has one."""
        has_come = not self._lacking and self.kept_position >= self._image_position
        return self._catching_up.is_over and has_come

    async def finish(self) -> None:
        """Apply all records that have come; then the state may be used."""
        self._pace = None
        self._records.append(None)
        self._filled.set()
        await self._applying

    def discard(self) -> None:
        """Apply nothing more; the state is of no use any more."""
        self._applying.cancel()

    async def _apply(self, image: Image) -> None:
        async with Recovery(self.state, image, self.retained) as recovery:
            if self._disk is not None:
                await self._disk.sync_copy(image)
            self.is_loaded = True
            self._catching_up.begin(len(self._records))
            self._progressed.set()
            while await self._apply_all(recovery):
                await self._filled.wait()

    async def _apply_all(self, recovery: Recovery) -> bool:
        """Apply all records that have come; return whether more may come."""
        clock = self.state.clock
        began = clock()
        self._filled.clear()
        while self._records:
            arrival = self._records.popleft()
            if arrival is None:
                return False
            await self._apply_one(recovery, arrival)
            if (taken := clock() - began) > _AT_ONCE_SECONDS:
                # Others have most of the time while records of the image are applied.
                is_slow = self._pace is not None and self._catching_up.has_time
                await asyncio.sleep(_RESTS * taken if is_slow and self._has_much_room else 0)
                began = clock()
        return True

    async def _apply_one(self, recovery: Recovery, arrival: Arrival) -> None:
        position = arrival.record.position
        await recovery.add(arrival.record)
        self._nbytes -= arrival.entry.nbytes
        self._catching_up.note_applied(len(self._records))
        self._progressed.set()
        self.applied = max(self.applied, position)
        if arrival.record.message.mark and (moment := await moment_of(self.state)) is not None:
            self._digesting = asyncio.ensure_future(self._digest(position, moment))
        if self._disk is not None:
            self._disk.tend()

    async def _digest(self, position: int, moment: Moment) -> None:
        parts = await digests_beside(self.state, moment)
        self.digest = StateDigest(position=position, parts=parts)
