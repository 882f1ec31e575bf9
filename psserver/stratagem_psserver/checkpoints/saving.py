"""Saves: writing a server's part of a checkpoint while training goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stratagem_proto.checkpoint.blocks import WriteOptions
from stratagem_proto.checkpoint.entries import TensorFile
from stratagem_proto.checkpoint.folder import open_checkpoint, part_name
from stratagem_proto.checkpoint.parts import Content, write_part
from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    StratagemError,
)
from stratagem_proto.server_log import LOG
from stratagem_proto.stores.places import Place, shared_place
from stratagem_proto.stores.store import Folder
from stratagem_proto.v1.status_pb2 import CheckpointStatus
from stratagem_psserver.checkpoints.comparing import compared
from stratagem_psserver.checkpoints.continuation import dump
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState
from stratagem_psserver.variables.snapshot import Snapshot

# The most ended saves that are remembered until clients ask for their results.
_REMEMBERED = 32

# The most saves under way, each of which can grow to the size of all variables.
MAX_SAVES = 8

# Until then a client has asked for the result of a save that it waits for.
_ASKING_SECONDS = 5.0

Saved = tuple[TensorFile, str]
"""A written part, and the server's state besides variables as JSON."""


@dataclass(frozen=True)
class _Written:
    """A part that was written.

    Attributes:
        folder: The folder of the checkpoint.
        ended: When the part was complete, in seconds of the monotonic clock.
        nbytes: Its size.
        seconds: How long it took to write.
    """

    folder: str
    ended: float
    nbytes: int
    seconds: float


class Saves:
    """The saves of a server, by their cuts."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._saves, self._failures = 0, 0
        self._last: _Written | None = None
        self._tasks: dict[bytes, asyncio.Task[Saved]] = {}

    def begin(self, cut: bytes, folder: str, base: str = "") -> None:
        """Take a snapshot of all variables and begin to write it; a repetition does nothing.

        Args:
            cut: Which moment it is.
            folder: The path of the folder of the checkpoint.
            base: The path of the checkpoint beside which it will be read; "" for none.

        Raises:
            InvalidArgumentError: The path of the folder is not absolute.
            NotFoundError: The folder does not exist on this machine.
            PermissionDeniedError: The folder is not below the server's root of checkpoints.
            FailedPreconditionError: Too many saves are under way.
        """
        if cut in self._tasks:
            return
        self._require_few()
        opened = self._opened(shared_place(folder))
        beside = shared_place(base) if base else None
        snapshot = self._state.snapshots.take(self._state.store)
        facts = dump(self._state)
        self._tasks[cut] = asyncio.ensure_future(self._write(opened, beside, snapshot, facts))

    def _opened(self, path: Place) -> Folder:
        settings = self._state.settings
        if isinstance(path, Path) and not path.is_absolute():
            raise InvalidArgumentError(f"{str(path)!r} is not an absolute path")
        try:
            return settings.checkpoints.folder(path)
        except PermissionDeniedError:
            raise
        except OSError as error:
            raise NotFoundError(
                f"{settings.label} has no folder {str(path)!r} to save in ({error.strerror}); "
                "choose one that all servers and the chief share"
            ) from error

    def _require_few(self) -> None:
        ended = [cut for cut, task in self._tasks.items() if task.done()]
        under_way = len(self._tasks) - len(ended)
        for cut in ended[:-_REMEMBERED]:
            del self._tasks[cut]
        if under_way >= MAX_SAVES:
            raise FailedPreconditionError(
                f"{self._state.settings.label} writes {MAX_SAVES} checkpoints, which "
                "is the most at a time, since each may need the memory of all "
                "variables; save again when one is written"
            )

    async def _write(
        self, folder: Folder, base: Place | None, snapshot: Snapshot, facts: str
    ) -> Saved:
        settings, path = self._state.settings, folder.path
        write = partial(_write_part, folder, settings, snapshot, base)
        began = self._state.clock()
        try:
            # Not in the threads of `Compute`, which it would block.
            part = await asyncio.get_running_loop().run_in_executor(None, write)
        except StratagemError:
            self._failures += 1
            raise
        except OSError as error:
            self._failures += 1
            raise FailedPreconditionError(
                f"{settings.label} cannot write to {str(path)!r}: {error}"
            ) from error
        finally:
            self._state.snapshots.close(snapshot)
        self._saves += 1
        ended = self._state.clock()
        # The parts' own folder is renamed once all parts are written.
        root, nbytes = str(path.parent), part.file.nbytes
        self._last = _Written(root, ended, nbytes, ended - began)
        return part, facts

    def report(self) -> CheckpointStatus:
        """Return the number of saves, and the facts of the last one."""
        status = CheckpointStatus(saves=self._saves, failures=self._failures)
        if last := self._last:
            status.folder, status.bytes = last.folder, last.nbytes
            status.age_seconds = self._state.clock() - last.ended
            status.seconds = last.seconds
        return status

    def knows(self, cut: bytes) -> bool:
        """Return whether the save of a cut has begun."""
        return cut in self._tasks

    @property
    def are_awaited(self) -> bool:
        """Whether a client may be about to ask for the result of one."""
        last = self._last
        asks = last is not None and self._state.clock() - last.ended < _ASKING_SECONDS
        return asks or not all(task.done() for task in self._tasks.values())

    async def finish(self, cut: bytes, seconds: float) -> Saved | None:
        """Wait for a save and return its result; None if it takes longer than so many seconds.

        Raises:
            FailedPreconditionError: The save is unknown, or its part could not be written.
        """
        task = self._tasks.get(cut)
        if task is None:
            raise FailedPreconditionError(
                f"{self._state.settings.label} does not know this save; it may have "
                "restarted meanwhile. Save again"
            )
        await asyncio.wait([task], timeout=seconds)
        return task.result() if task.done() else None

    async def close(self) -> None:
        """Wait for all saves that are under way."""
        if self._tasks:
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def _write_part(
    folder: Folder, settings: ServerSettings, snapshot: Snapshot, base: Place | None
) -> TensorFile:
    folder.require_there()
    options = WriteOptions(has_digests=bool(settings.checkpoint_key))
    name, contents = part_name(settings.task), _contents(settings, snapshot, base)
    return write_part(folder, name, contents, snapshot.taken(contents), options=options)


def _contents(
    settings: ServerSettings, snapshot: Snapshot, base: Place | None
) -> Sequence[Content]:
    """Return what is written of a snapshot: what a base lacks, or all."""
    if base is None:
        return snapshot.contents
    try:
        return compared(snapshot, open_checkpoint(base, settings.checkpoints))
    except (StratagemError, OSError) as error:
        LOG.warning("saves all rows", task=settings.label, base=str(base), why=str(error))
        return snapshot.contents
