"""What a replica keeps on disk, through the states that it has one after the other."""

from __future__ import annotations

from pathlib import Path

from stratagem_proto.v1.replication_pb2 import Replica
from stratagem_psserver.log.log import Log
from stratagem_psserver.persistence.folder import StateFolder
from stratagem_psserver.persistence.persistence import Persistence
from stratagem_psserver.persistence.retention import RetainedRecords
from stratagem_psserver.state import ServerState


class ReplicaDisk:
    """The folder of a replica with a log, and what writes the present state there.

    Args:
        folder: The folder, which this replaces whole when another state comes.
        persistence: What has read the state that was there.

    Attributes:
        log: The log of the present state; None before it is complete.
        retained: The records that an image of the state may lack to which `recover` has come.
    """

    def __init__(self, folder: StateFolder, persistence: Persistence) -> None:
        self._folder, self._persistence = folder, persistence
        self.log: Log | None = None
        self.retained: RetainedRecords | None = None

    @property
    def replica(self) -> Replica | None:
        """The replica whose state the folder has; None if there is no complete one."""
        return self._folder.replica

    @property
    def has_state(self) -> bool:
        """Whether the folder has the state of an earlier process."""
        return self._persistence.has_state

    async def recover(self) -> int:
        """Come to the state that is on disk, and return the position of its last change.

        Raises:
            DataLossError: It is damaged.
            FailedPreconditionError: It was written with other kernels.
        """
        self.retained = self._persistence.retain()
        await self._persistence.recover()
        self.log = self._persistence.log
        return self._persistence.log.position

    def begin_run(self) -> None:
        """Let further changes be those of a run that begins now."""
        self._persistence.begin_run()

    def give_up(self) -> None:
        """Write nothing more of the state, which nobody relies on."""
        self._persistence.stop()
        self.log = self.retained = None

    def clear(self) -> Path:
        """Remove the state, and return the folder for the files of an image."""
        self.give_up()
        self._folder.clear()
        return self._folder.images

    def begin(self, state: ServerState) -> Persistence:
        """Record the changes of a state that begins with the image that is there now.

        First come those that the image lacks, with marks in the places of others.
        """
        self._persistence = Persistence(state, self._folder)
        self.log = self._persistence.begin_copy()
        return self._persistence

    def belong(self, replica: Replica) -> None:
        """Note that the state is complete, and that of a replica."""
        self._folder.belong(replica)

    def tend(self) -> None:
        """Begin an image if the log has grown enough; called now and then."""
        self._persistence.tend()

    async def close(self) -> None:
        """Leave an image of a complete state, and release the folder."""
        if self.log is None:
            self._folder.release()
        else:
            await self._persistence.close()

    def release(self) -> None:
        """Release the folder as it is; a repetition does nothing."""
        self._persistence.release()
