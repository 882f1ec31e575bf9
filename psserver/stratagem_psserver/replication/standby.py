"""The state of a backup: that of an image, and of the records behind it as they come."""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from stratagem_proto.checkpoint.folder import open_checkpoint, part_name
from stratagem_proto.log.segments import Record
from stratagem_proto.v1.replication_pb2 import ImagePiece
from stratagem_psserver.persistence.images import Image
from stratagem_psserver.persistence.recovery import Recovery
from stratagem_psserver.replication.batches import ImageFiles
from stratagem_psserver.state import ServerState

# A backup that has so many bytes of records to apply acknowledges no more of them.
_MOST_BYTES = 64 << 20


class IncomingImage:
    """An image on its way, in a folder of its own, which `close` removes."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="stratagem-image-")
        self._files = ImageFiles(Path(self._folder.name))

    def add(self, piece: ImagePiece) -> None:
        """Write a piece; raise as `ImageFiles.add`."""
        self._files.add([piece])

    def read(self, task: int) -> Image:
        """Return the image, all of whose pieces have come.

        Args:
            task: The index of the server's task.

        Raises:
            DataLossError: It is damaged.
        """
        checkpoint = open_checkpoint(Path(self._folder.name))
        return Image(checkpoint, checkpoint.index.servers[part_name(task)])

    def close(self) -> None:
        """Remove its files."""
        self._folder.cleanup()


class Standby:
    """Applies records to a state that nobody uses yet, in the order in which they come.

    Args:
        state: The state, which is empty.
        image: What it begins with.

    Attributes:
        state: The state.
        position: The position of the last record that has come.
        applied: The position of the last one that is applied.
    """

    def __init__(self, state: ServerState, image: Image) -> None:
        self.state = state
        self.position = self.applied = image.position
        state.incarnation = bytes.fromhex(image.exact["incarnation"])
        self._records: deque[Record | None] = deque()
        self._nbytes = 0
        self._filled = asyncio.Event()
        self._begun = asyncio.Event()
        self._applying = asyncio.ensure_future(self._apply(image))

    async def begin(self) -> None:
        """Wait until the image is applied.

        Raises:
            DataLossError: It is damaged.
        """
        begun = asyncio.ensure_future(self._begun.wait())
        await asyncio.wait([begun, self._applying], return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        self.require_sound()

    def require_sound(self) -> None:
        """Check that all records so far had the effect that they had on the primary.

        Raises:
            DataLossError: One had not.
        """
        if self._applying.done():
            self._applying.result()

    @property
    def has_room(self) -> bool:
        """Whether so little waits to be applied that more may come."""
        return self._nbytes < _MOST_BYTES

    def add(self, records: Sequence[Record]) -> None:
        """Apply records behind all others."""
        for record in records:
            self._records.append(record)
            self._nbytes += len(record.tensors)
            # Those before are parts that the image lacks.
            self.position = max(self.position, record.position)
        self._filled.set()

    async def finish(self) -> None:
        """Apply all records that have come; then the state may be used.

        Raises:
            DataLossError: One had not the effect that it had on the primary.
        """
        self._records.append(None)
        self._filled.set()
        await self._applying

    def discard(self) -> None:
        """Apply nothing more; the state is of no use any more."""
        self._applying.cancel()

    async def _apply(self, image: Image) -> None:
        async with Recovery(self.state, image) as recovery:
            self._begun.set()
            while True:
                await self._filled.wait()
                self._filled.clear()
                while self._records:
                    record = self._records.popleft()
                    if record is None:
                        return
                    await recovery.add(record)
                    self._nbytes -= len(record.tensors)
                    self.applied = max(self.applied, record.position)
