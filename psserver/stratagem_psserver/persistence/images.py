"""Images: all of a server's state at a position of its log, in the format of checkpoints."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from stratagem_proto.errors import (
    FailedPreconditionError,
    NotFoundError,
    StratagemError,
    UnavailableError,
)
from stratagem_psserver.checkpoints import facts_of, resume_facts, resume_variables
from stratagem_psserver.log.changes import RecordLog
from stratagem_psserver.persistence.folder import StateFolder
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState
from stratagem_psserver.variables.snapshots import Snapshot
from stratagem_rpc.server_log import LOG
from stratagem_storage.checkpoint.entries import BLOCK_BYTES, TensorEntry
from stratagem_storage.checkpoint.folder import (
    Checkpoint,
    NewCheckpoint,
    open_checkpoint,
    part_name,
)
from stratagem_storage.checkpoint.index import Index, is_count, refused_if_unsound
from stratagem_storage.checkpoint.parts import Part, write_part
from stratagem_storage.stores.local import latest_of
from stratagem_storage.stores.store import INDEX, LATEST

# Of a large tensor, so much is read between two rests.
_AT_ONCE_BYTES = 1 << 20

# In a rest, the time between two looks at whether to go on.
_GLANCE_SECONDS = 0.1


class Throttle:
    """When a thread that reads rests, so that others have processors left.

    Args:
        seconds_after: Returns for how long to rest after so many bytes, in seconds.
        hurries: Returns whether there is no time for that.
    """

    def __init__(
        self, seconds_after: Callable[[int], float], hurries: Callable[[], bool] = lambda: False
    ) -> None:
        self._seconds_after, self._hurries = seconds_after, hurries
        self._ended = threading.Event()

    def rest(self, nbytes: int) -> None:
        """Rest after so many bytes; raise UnavailableError if nobody needs them any more."""
        left = self._seconds_after(nbytes)
        while left > 0.0 and not (self._hurries() or self._ended.wait(min(left, _GLANCE_SECONDS))):
            left -= _GLANCE_SECONDS
        if self._ended.is_set():
            raise UnavailableError("what is read is not needed any more")

    def end(self) -> None:
        self._ended.set()


@dataclass(frozen=True)
class PacedCheckpoint(Checkpoint):
    """A checkpoint whose reader rests."""

    throttle: Throttle = field(kw_only=True)

    def read(self, entry: TensorEntry, start: int, target: memoryview) -> None:
        for begin in range(0, len(target), _AT_ONCE_BYTES):
            part = target[begin : begin + _AT_ONCE_BYTES]
            super().read(entry, start + begin, part)
            self.throttle.rest(len(part))


# The name of an image that is sent, the first and only one where it goes.
_ONLY = "checkpoint-1"


@dataclass(frozen=True)
class Moment:
    """What an image is made of.

    Attributes:
        position: The position of the last change that it contains.
        needed: The position of the first record that is needed beside it; 0 if that is a request
            without a record.
        snapshot: The values of all variables.
        facts: The rest of the state, as JSON.
    """

    position: int
    needed: int
    snapshot: Snapshot
    facts: Mapping[str, Any]


async def moment_of(state: ServerState) -> Moment | None:
    """Return the present state, between two changes; None if some do not end."""
    async with state.mutations.paused() as is_quiet:
        if not is_quiet or state.rounds.awaits_norms():
            return None
        position = state.changes.last
        records = sorted({*state.rounds.records(), *state.kept.records()})
        exact = {
            "durability": state.settings.durability,
            "position": position,
            "records": records,
            "incarnation": state.incarnation.hex(),
            "first_version": state.store.first_version,
            "open": [session.id.hex() for session in state.ledger.opened()],
            "groups": state.rounds.facts(),
            "gate": state.gate.facts(),
            "adopted": [name.hex() for name in state.closures.adopted],
            "succession": state.succession.facts(),
            "awaited": state.restored.awaited(),
            "history": state.changes.history.facts(),
        }
        facts = {**facts_of(state), "exact": exact}
        snapshot = state.snapshots.take(state.store)
        return Moment(position, min([position + 1, *records]), snapshot, facts)


def image_files(moment: Moment, task: int) -> Iterator[tuple[str, memoryview]]:
    """Yield the files of an image in pieces with their paths; none of them is written."""
    name, snapshot = part_name(task), moment.snapshot
    part = Part(name, snapshot.contents)
    for block in part.blocks(snapshot.taken()):
        yield f"{_ONLY}/{name}", block
    index = Index.of_parts([part.file()], {name: moment.facts}).to_bytes()
    for begin in range(0, len(index), BLOCK_BYTES):
        yield f"{_ONLY}/{INDEX}", memoryview(index)[begin : begin + BLOCK_BYTES]
    yield LATEST, memoryview(latest_of(_ONLY, index))


def write_image(root: Path, moment: Moment, task: int) -> None:
    """Write an image, which replaces the one before once it is on disk."""
    new = NewCheckpoint(root)
    try:
        name, snapshot = part_name(task), moment.snapshot
        part = write_part(new.folder, name, snapshot.contents, snapshot.taken())
        new.commit(Index.of_parts([part], {name: moment.facts}), keep=1)
    except BaseException:
        new.abandon()
        raise


@dataclass(frozen=True)
class Image:
    """An image that was read.

    Attributes:
        checkpoint: Its files.
        facts: The state besides variables.
        throttle: When a thread that restores variables rests; None if it makes haste.
    """

    checkpoint: Checkpoint
    facts: Mapping[str, Any]
    throttle: Throttle | None = None

    @property
    def exact(self) -> Mapping[str, Any]:
        """The part of the facts that checkpoints of a cluster lack."""
        exact: Mapping[str, Any] = self.facts["exact"]
        return exact

    @property
    def position(self) -> int:
        position: int = self.exact["position"]
        return position

    @property
    def needed(self) -> int:
        """The position of the first record that is needed beside it."""
        needed: int = min([self.position + 1, *self.exact["records"]])
        return needed

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.checkpoint.index.files.values())

    async def restore(self, state: ServerState) -> None:
        """Restore the state of an empty server, but for the steps that are not complete.

        Nobody may use the state before this returns. If it is cancelled, the state is of no use.

        Raises:
            DataLossError: The image is damaged.
        """
        with refused_if_unsound(str(self.checkpoint.folder)):
            # Servers of other tasks may be on the event loop.
            if self.throttle is None:
                await state.compute.run(partial(self._restore_variables, state), self.nbytes)
            else:
                slow = PacedCheckpoint(
                    self.checkpoint.opened, self.checkpoint.index, throttle=self.throttle
                )
                work = partial(replace(self, checkpoint=slow)._restore_variables, state)
                try:
                    # Not in the threads of `Compute`, which it would block.
                    await asyncio.get_running_loop().run_in_executor(None, work)
                finally:
                    self.throttle.end()
            self._restore_facts(state)

    def _restore_variables(self, state: ServerState) -> None:
        part = part_name(state.settings.task)
        resume_variables(state, self.checkpoint, part, has_all=False)
        for entry in self.checkpoint.index.tensors.values():
            if variable := state.store.find(entry.name):
                variable.version = entry.version
        state.store.first_version = self.exact["first_version"]

    def _restore_facts(self, state: ServerState) -> None:
        resume_facts(state, self.facts)
        for session_id in map(bytes.fromhex, self.exact["open"]):
            session = state.ledger.known(session_id)
            assert session is not None
            state.open_session(session)
        state.clocks.restore(self.facts["clocks"], are_there=True)
        state.barriers.restore_gatherings(self.facts["barriers"])
        state.gate.restore(self.exact["gate"])
        state.closures.adopted = tuple(map(bytes.fromhex, self.exact["adopted"]))
        state.rounds.restore_groups(self.exact["groups"])
        # Images of earlier releases lack these.
        if succession := self.exact.get("succession"):
            state.succession.restore(succession)
        if (awaited := self.exact.get("awaited")) is not None:
            state.restored.restore(self.facts["restored"], awaited)
        state.changes.history.restore(self.exact.get("history", ()))


def image_at(folder: Path, task: int) -> Image:
    """Return a task's image; raise NotFoundError, DataLossError, or the error of another task."""
    checkpoint = open_checkpoint(folder)
    servers, part = checkpoint.index.servers, part_name(task)
    if servers and part not in servers:
        number = min(servers).removeprefix("part-").removesuffix(".safetensors")
        raise another_task(str(checkpoint.folder), f"/job:ps/task:{number}", f"/job:ps/task:{task}")
    with refused_if_unsound(str(checkpoint.folder)):
        image = Image(checkpoint, servers[part])
        positions = (image.position, image.needed, *image.exact["records"])
        if not (all(map(is_count, positions)) and image.exact["durability"]):
            raise ValueError("its position is no number of a record")
        return image


def another_task(path: str, found: str, label: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"{path!r} has the state of {found}, and this is {label}: the folders of two servers "
        "were exchanged, or one was copied over the other. Give each server the folder that it had "
        "before, or move this one away and restore a checkpoint"
    )


def read_image(folder: StateFolder, settings: ServerSettings) -> Image | None:
    """Return the last image in a folder; None if there is none.

    Raises:
        FailedPreconditionError: The folder is that of a server of another durability.
        DataLossError: The image is damaged.
    """
    image, was = None, settings.durability
    with suppress(NotFoundError):
        image = image_at(folder.images, settings.task)
    if image is not None:
        was = image.exact["durability"]
    elif folder.segments():
        was = "log"
    if was != settings.durability:
        raise FailedPreconditionError(
            f"{settings.label} has kept its state in {str(folder.path)!r} with --durability {was}; "
            "go on with that, or begin with a checkpoint and another folder"
        )
    return image


async def take_image(state: ServerState, root: Path, log: RecordLog | None = None) -> Moment | None:
    """Write an image, and return what it contains; None if requests or the disk prevent it."""
    moment = await moment_of(state)
    if moment is None:
        return None
    try:
        if log is not None:
            # An image must not contain what the log may lose.
            await log.on_disk(moment.position)
        writing = partial(write_image, root, moment, state.settings.task)
        # Not in the threads of `Compute`, which it would block.
        await asyncio.get_running_loop().run_in_executor(None, writing)
    except (OSError, StratagemError) as error:
        LOG.warning("cannot write an image", task=state.settings.label, why=str(error))
        return None
    finally:
        state.snapshots.close(moment.snapshot)
    return moment
