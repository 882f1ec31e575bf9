"""Faults that lose what was answered when a server ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path

from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import RequestKey
from stratagem_psserver.exactly_once.numbering import Numbering
from stratagem_psserver.log import segment_writer
from stratagem_psserver.log.changes import Changes, History
from stratagem_psserver.persistence import folder
from stratagem_psserver.persistence.folder import StateFolder
from stratagem_psserver.service import Methods
from stratagem_storage import log as log_files
from stratagem_storage.log import LogReader, segments_in
from tests.simulation.planted.plant import Plant, replaced

_has_intact_batch = log_files._has_intact_batch


async def _answers_at_once(self: Changes) -> None:
    """Let answers leave whose records are not on disk yet."""


async def _shows_at_once(
    self: Methods, frames: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Let reads show values whose records are not on disk yet."""
    async with aclosing(frames):
        async for frame in frames:
            yield frame


def _restores_no_reply(self: Numbering, key: RequestKey, reply: RecordedReply) -> None:
    """Start again without what sessions were answered."""


def _syncs_nothing(path: Path) -> None:
    """Leave the names in a folder to the system."""


def _trusts_memory(self: StateFolder) -> None:
    """Take what the system has in memory for what is on disk."""


def _takes_old_for_later(data: memoryview, least: int) -> bool:
    """Take what an earlier use of the file has left for what was written later."""
    return _has_intact_batch(data, 0)


def _reads_on(self: LogReader, path: Path) -> bool:
    """Read a segment on where the next one has begun."""
    return False


def _reads_all(self: StateFolder, needed: int = 1) -> list[Path]:
    """Read segments, too, that were removed before a loss of power."""
    return segments_in(self.path)


def _believes_itself(self: History, shown: bytes, label: str) -> None:
    """Go on, whatever a client shows that it was told."""


def _takes_runs_for_its_own(self: History, run: bytes) -> int:
    """Take each run that a client names for one that has recorded nothing which is lost."""
    return 1 << 62


FAULTS: Mapping[str, Plant] = {
    "an answer leaves before its record": replaced(Changes, "durable", _answers_at_once),
    "a read shows what is not on disk": replaced(Methods, "_durable_frames", _shows_at_once),
    "replies are lost at a restart": replaced(Numbering, "repeat", _restores_no_reply),
    "a segment's name is not on disk": replaced(segment_writer, "sync_folder", _syncs_nothing),
    "a server's folder is not on disk": replaced(folder, "sync_folder", _syncs_nothing),
    "memory is taken for the disk": replaced(StateFolder, "settle", _trusts_memory),
    "old batches are taken for later ones": replaced(
        log_files, "_has_intact_batch", _takes_old_for_later
    ),
    "a segment is read beyond its end": replaced(LogReader, "_is_over", _reads_on),
    "a server goes on without what a client was told": replaced(
        History, "require", _believes_itself
    ),
    "the end of a run is not known": replaced(History, "_end_of", _takes_runs_for_its_own),
    "removed segments are read": replaced(StateFolder, "segments", _reads_all),
}
