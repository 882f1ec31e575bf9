"""What a server keeps on disk, from its start to its end: a log with images, or images alone."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Hashable
from functools import partial
from pathlib import Path

import torch

from stratagem_proto.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from stratagem_proto.protocol import RUN_BYTES, release
from stratagem_proto.v1.log_pb2 import Kernels, SegmentHead
from stratagem_proto.v1.session_pb2 import Task
from stratagem_psserver.checkpoints import resume_as_another_run
from stratagem_psserver.log.log import Log
from stratagem_psserver.log.segment_writer import SegmentWriter, Spares
from stratagem_psserver.persistence.folder import StateFolder
from stratagem_psserver.persistence.images import (
    Image,
    Moment,
    another_task,
    read_image,
    take_image,
)
from stratagem_psserver.persistence.replay import Recovery, RetainedRecords
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState
from stratagem_rpc.server_log import LOG
from stratagem_storage.log import FORMAT, LogReader, Written


def present_kernels() -> Kernels:
    """Return the kernels of this process.

    Torch counts threads by thread, so this is called once, in the thread that makes a server.
    """
    return Kernels(
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        capability=torch.backends.cpu.get_cpu_capability(),
    )


def described(kernels: Kernels) -> str:
    return f"torch {kernels.torch}, {kernels.threads} threads and {kernels.capability}"


# The longest time for the last image; without it the next start goes on from the one before.
_LAST_IMAGE_SECONDS = 60.0


class PeriodicImages:
    """Images of a server's state, one at each interval and one at its end.

    A server that was stopped in order goes on as the same one, since nothing is lost. One that was
    killed goes on with its last image, as if that were a checkpoint: to clients it is another one.

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
        return self._image is not None

    async def recover(self) -> None:
        """Go on from the last image, if there is one."""
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
        await asyncio.wait([leaving], timeout=_LAST_IMAGE_SECONDS)
        moment = leaving.result() if leaving.done() else None
        # Gradients of a step that is not complete are in no image.
        if moment is not None and moment.needed:
            self._folder.leave()
        self.release()

    def release(self) -> None:
        self._folder.release()


_SEGMENT_BYTES = 64 << 20
_RETRY_SECONDS = 1.0

# The longest time for the last image; without it the next start replays the log.
_LEAVING_SECONDS = 60.0


class Persistence:
    """The log and the images of a server.

    The incarnation of the server is that of the log: to clients a server that has replayed its log
    is the same as before, and was only not reachable for a while.

    Raises:
        InvalidArgumentError: The folder cannot be used.
        FailedPreconditionError: Another process uses it, or another server has written it, or one
            that kept no log.
        DataLossError: What is there is damaged.
        UnavailableError: The disk fails.
    """

    def __init__(self, state: ServerState, folder: StateFolder | None = None) -> None:
        settings = state.settings
        self._state, self._label = state, settings.label
        self._task = Task(job=settings.job, index=settings.task)
        self._folder = folder or state_folder(settings)
        try:
            self._image = read_image(self._folder, settings)
            self._folder.settle()
            self._reader = LogReader(self._folder.segments(self._needed))
            self._heads: list[SegmentHead] = []
            state.incarnation = self._read_heads() or state.incarnation
            self._written = Written.read(self._folder.path)
            if self._written is not None and not self.has_state:
                self._written.require_reached(self._folder.path, 0, None)
        except BaseException:
            self._folder.release()
            raise
        self._retained: RetainedRecords | None = None
        self._log: Log | None = None
        self._imaging: asyncio.Task[None] | None = None
        self._imaged = self._image_position
        self._kernels = present_kernels()
        most = max(1, settings.log_bytes // _SEGMENT_BYTES)
        self._spares = Spares(self._folder.path, most, settings.log_bytes)
        head = SegmentHead(
            format=FORMAT,
            incarnation=state.incarnation,
            task=self._task,
            kernels=self._kernels,
            release=release(),
        )
        self._writer = SegmentWriter(self._folder.path, head, _SEGMENT_BYTES, self._spares)

    def _read_heads(self) -> bytes:
        """Read the heads of all segments, and return the incarnation that the files tell of."""
        known = set()
        for path, head in self._reader.heads():
            if head.task != self._task:
                found = f"/job:{head.task.job}/task:{head.task.index}"
                raise another_task(str(path), found, self._label)
            self._heads.append(head)
            known.add(head.incarnation)
        if self._image is not None:
            known.add(bytes.fromhex(self._image.exact["incarnation"]))
        if len(known) > 1:
            raise FailedPreconditionError(
                f"{str(self._folder.path)!r} has files of {len(known)} servers; move those away "
                f"that are not of {self._label}"
            )
        return known.pop() if known else b""

    @property
    def has_state(self) -> bool:
        """Whether the folder has the state of an earlier process."""
        return self._image is not None or bool(self._heads)

    def retain(self) -> RetainedRecords:
        """Return what will have the records of `recover` that another image may lack."""
        self._retained = RetainedRecords(self._state)
        return self._retained

    async def recover(self) -> None:
        """Come to the state of the last change that is on disk, and record further changes.

        Raises:
            DataLossError: The log or the image is damaged, or a change does not repeat.
            FailedPreconditionError: The log was written with other kernels.
        """
        began = self._state.clock()
        # Those of another process.
        self._spares.remove()
        replayed, leapt = await self._replay()
        tail, written = self._reader.tail, self._written
        # That of another log is left where somebody has moved the files away.
        if not leapt and written is not None and written.incarnation == self._state.incarnation:
            last = max(self._reader.position, self._image_position)
            written.require_reached(self._folder.path, last, tail)
        if tail is not None:
            # What is behind the last record; nobody has heard of it.
            nbytes, records = tail.unfinished(self._reader.position)
            if nbytes:
                LOG.info(
                    "cut off what was not written in full",
                    task=self._label,
                    path=str(tail.path),
                    offset=tail.offset,
                    behind_record=self._reader.position,
                    nbytes=nbytes,
                    records=records or "unknown",
                )
            self._folder.cut(tail)
        self._state.ledger.renew_all(self._state.clock())
        self._state.changes.log = self.begin_log()
        self.begin_run()
        if leapt or self._state.resumed:
            await self._take_image()
        seconds = round(self._state.clock() - began, 3)
        LOG.info("recovered", task=self._label, records=replayed, seconds=seconds)

    def begin_run(self) -> None:
        """Let further changes be those of another run, to whom clients show what they were told."""
        # What names it decides nothing, so that simulations take the same course with any name.
        run, position = secrets.token_bytes(RUN_BYTES), self.log.position
        self._state.changes.history.begin(run, position)
        self._writer.begin_run(run, position)

    @property
    def log(self) -> Log:
        """The log of further changes, once it has begun."""
        assert self._log is not None
        return self._log

    def begin_log(self) -> Log:
        """Return the log of further changes, which begins behind the last one on disk."""
        return self._log_behind(max(self._reader.position, self._image_position))

    def begin_copy(self) -> Log:
        """Return the log for records that another server has sent beside the image.

        It begins with the first one that the image lacks.
        """
        if self._image is not None and (runs := self._image.exact.get("history")):
            run, after = runs[-1]
            self._writer.begin_run(bytes.fromhex(run), after)
        return self._log_behind(self._needed - 1)

    async def sync_copy(self, image: Image) -> None:
        await self._state.compute.run(self._folder.sync_image, image.nbytes)

    def _log_behind(self, position: int) -> Log:
        log = self._log = Log(self._writer, self._label, position)
        log.on_leap = self._begin_image
        self._writer.written = sum(path.stat().st_size for path in self._folder.segments())
        return log

    @property
    def _image_position(self) -> int:
        return self._image.position if self._image else 0

    @property
    def _needed(self) -> int:
        return self._image.needed if self._image else 1

    async def _replay(self) -> tuple[int, bool]:
        """Apply the records that the image lacks; return their number, and whether some remain."""
        count, reader = 0, self._reader
        if reader.position >= self._needed:
            raise DataLossError(
                f"the log in {str(self._folder.path)!r} begins with record {reader.position + 1}, "
                f"but record {self._needed} is needed; restore the segments before from a backup, "
                "or move the folder away and restore a checkpoint"
            )
        async with Recovery(self._state, self._image, self._retained) as recovery:
            for head in self._heads:
                self._state.changes.history.note(head.run, head.run_after)
            for record in reader.records():
                if record.position > self._image_position:
                    if record.message.leap:
                        return count, True
                    if self._heads and (was := self._heads[-1].kernels) != self._kernels:
                        raise FailedPreconditionError(
                            f"the log of {self._label} was written with {described(was)}, but this "
                            f"process has {described(self._kernels)}, which may compute other "
                            "bits. Start the server as it was and stop it by SIGTERM, so that it "
                            "leaves an image; then change it"
                        )
                    count += 1
                await recovery.add(record)
        return count, False

    def tend(self) -> None:
        """Begin an image if the log has grown enough since the last one; called now and then."""
        settings, log = self._state.settings, self._log
        records = (log.position if log else 0) - self._imaged
        if self._writer.written >= settings.log_bytes or records >= settings.log_records:
            self._begin_image()

    def _begin_image(self) -> None:
        if self._imaging is None or self._imaging.done():
            self._imaging = asyncio.ensure_future(self._take_image())

    async def _take_image(self) -> None:
        log = self.log
        while True:
            self._writer.rotate()
            moment = await take_image(self._state, self._folder.images, log)
            if moment is not None:
                await self._rely_on(moment, log)
            if not log.awaits_image:
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def _rely_on(self, moment: Moment, log: Log) -> None:
        """Remove what an image has replaced."""
        self._imaged, self._writer.written = moment.position, 0
        log.covered(moment.position)
        remove = partial(self._folder.give_up_before, moment.needed, self._spares.keep)
        await asyncio.get_running_loop().run_in_executor(None, remove)

    async def close(self) -> None:
        """Leave an image, so that the next start replays nothing, and release the folder."""
        if self._imaging is not None:
            await asyncio.wait([self._imaging])
        log = self._log
        if log is not None and log.position > self._imaged:
            leaving = asyncio.ensure_future(self._take_image())
            await asyncio.wait([leaving], timeout=_LEAVING_SECONDS)
            await log.close()
        self._spares.remove()
        self.release()

    def release(self) -> None:
        """Release the folder as it is; a repetition does nothing."""
        self.stop()
        self._folder.release()

    def stop(self) -> None:
        """Write nothing more, and leave the folder as it is to the server."""
        if self._imaging is not None:
            self._imaging.cancel()
        if self._log is not None:
            self._log.stop()
            # Nothing may be written to files that are closed.
            self._log.join()
        self._writer.end()


def state_folder(settings: ServerSettings) -> StateFolder:
    """Return the folder in which a server keeps its log, which no other process uses meanwhile.

    Raises:
        InvalidArgumentError: The settings name none, or it cannot be used.
        FailedPreconditionError: Another process uses it, or an arbiter knows whether it counts.
    """
    if not settings.durability_folder:
        raise InvalidArgumentError(
            f"{settings.label} is to keep a log, but has no folder for it; name one on a disk by "
            "--durability-folder"
        )
    name = f"{settings.job}-{settings.task}"
    if settings.replicas > 1:
        name += f"-replica-{settings.replica}"
    elif settings.server_number != settings.task:
        name += f"-server-{settings.server_number}"
    folder = StateFolder(Path(settings.durability_folder), name, settings.label)
    if folder.replica is not None and not settings.arbiter:
        folder.release()
        raise FailedPreconditionError(
            f"{str(folder.path)!r} has the state of a server with --arbiter, and only that arbiter "
            f"knows whether {settings.label} has moved to another server since; start it with that "
            "--arbiter, as `stratagem run --movable` does, or move the folder away"
        )
    return folder
