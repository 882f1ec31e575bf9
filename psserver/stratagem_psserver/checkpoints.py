"""Saving the state of a server while training goes on, and resuming from what was saved."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    StratagemError,
)
from stratagem_proto.protocol import first_of_another_run
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import Task
from stratagem_proto.v1.status_pb2 import CheckpointStatus
from stratagem_proto.wire.tensors import as_bytes
from stratagem_psserver.exactly_once.closures import dump_closures, restore_closures
from stratagem_psserver.exactly_once.numbering import Numbering
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.limits import allocating
from stratagem_psserver.restoration import read_table
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState
from stratagem_psserver.tables.arena import TableSnapshot
from stratagem_psserver.variables.snapshots import ArrayValue, Origin, Snapshot
from stratagem_rpc.server_log import LOG
from stratagem_storage.checkpoint.entries import (
    KEYS,
    NUMBER_BYTES,
    FileEntry,
    TensorFile,
    WriteOptions,
    is_companion,
    row_count,
    row_nbytes,
)
from stratagem_storage.checkpoint.folder import (
    Checkpoint,
    changed_rows,
    open_checkpoint,
    part_name,
)
from stratagem_storage.checkpoint.index import refused_if_unsound
from stratagem_storage.checkpoint.parts import Content, write_part
from stratagem_storage.checkpoint.wholes import whole_name, wholes_of
from stratagem_storage.reading_ahead import read_ahead
from stratagem_storage.stores.places import Place, absolute_place, shared_place
from stratagem_storage.stores.store import Folder

_ADVICE = "start it where there is more, or let strategy.restore() use more servers"


def facts_of(state: ServerState) -> dict[str, Any]:
    """Return the state of a server except variables, as JSON."""
    return {
        "sessions": [_session_to_json(one) for one in state.ledger.sessions()],
        "fence": state.ledger.fence.facts(),
        **state.cluster.facts(),
        "optimizers": state.optimizers.classes(),
        "groups": state.rounds.applied(),
        "clocks": state.clocks.facts(),
        "closures": dump_closures(state.closures),
        "data": state.data.facts(),
        "barriers": state.barriers.facts(one.id for one in state.ledger.sessions()),
        "restored": state.restored.facts(),
        "run": state.restored.run_facts(),
        "counted": state.ledger.counted.facts(),
        "published": state.publication.facts(),
    }


def _session_to_json(session: Session) -> dict[str, Any]:
    numbering = session.numbering
    return {
        "id": session.id.hex(),
        "client": session.client.hex(),
        "program": session.program.hex(),
        "process": session.process.hex(),
        "role": session.role,
        "task": [session.task.job, session.task.index],
        "opened": session.opened,
        "acknowledged": numbering.acknowledged,
        "last": numbering.last,
        "replies": [b64encode(reply.SerializeToString()).decode() for reply in numbering.replies()],
    }


def _session_from_json(item: dict[str, Any]) -> Session:
    replies = [RecordedReply.FromString(b64decode(each)) for each in item["replies"]]
    job, index = item["task"]
    return Session(
        bytes.fromhex(item["id"]),
        item["role"],
        Task(job=job, index=index),
        numbering=Numbering.restored(item["acknowledged"], item["last"], replies),
        client=bytes.fromhex(item["client"]),
        program=bytes.fromhex(item.get("program", "")),
        process=bytes.fromhex(item.get("process", "")),
        opened=item.get("opened", 0),
    )


def resume(state: ServerState, path: str) -> bool:
    """Restore an empty server from its part of the latest checkpoint; return whether there is one.

    Raises:
        FailedPreconditionError: The checkpoint has no part of this server.
        DataLossError: It is damaged.
        PermissionDeniedError: It is not below the server's root of checkpoints.
    """
    try:
        checkpoint = open_checkpoint(shared_place(absolute_place(path)), state.settings.checkpoints)
    except NotFoundError:
        return False
    if part_name(state.settings.task) not in checkpoint.index.servers:
        raise FailedPreconditionError(
            f"{str(checkpoint.folder)!r} has nothing of {state.settings.label}: "
            f"{len(checkpoint.index.servers)} servers wrote it. Start as many, or let "
            "the program restore it by strategy.restore()"
        )
    resume_as_another_run(state, checkpoint)
    # Checkpoints of earlier releases do not say it otherwise.
    state.cluster.learn(None, len(checkpoint.index.servers))
    return True


def resume_as_another_run(state: ServerState, checkpoint: Checkpoint, has_all: bool = True) -> None:
    """Restore an empty server from its part of a checkpoint, which is of the past."""
    part = part_name(state.settings.task)
    state.store.first_version = first_of_another_run(state.environment.random_bytes)
    with allocating(_ADVICE), refused_if_unsound(str(checkpoint.folder)):
        resume_variables(state, checkpoint, part, has_all)
        resume_facts(state, checkpoint.index.servers[part])
        if checkpoint.index.ended:
            state.restored.end()
    state.resumed = True


def resume_facts(state: ServerState, facts: Mapping[str, Any]) -> None:
    state.ledger.restore(_session_from_json(one) for one in facts["sessions"])
    state.optimizers.restore(facts["optimizers"])
    state.rounds.restore(facts["groups"])
    # Checkpoints of earlier releases lack some of these.
    if fence := facts.get("fence"):
        state.ledger.fence.restore(fence)
    state.cluster.restore(facts)
    state.clocks.restore(facts.get("clocks", {}))
    restore_closures(state.closures, facts.get("closures", []))
    state.data.restore(facts.get("data", {}))
    state.barriers.restore(facts.get("barriers", {}))
    state.ledger.counted.restore(facts.get("counted", {}))
    state.restored.restore_run(facts.get("run"))
    state.publication.restore(facts.get("published"))
    announced = facts.get("restored", ())
    state.restored.restore(announced, awaited=[session for _, session in announced])


def resume_variables(
    state: ServerState, checkpoint: Checkpoint, part: str, has_all: bool = True
) -> None:
    """Create the variables of a part of a checkpoint, which has those of all servers or not."""
    tensors, store = checkpoint.index.tensors, state.store
    mine = [
        entry
        for name, entry in tensors.items()
        if entry.file == part and not is_companion(name, tensors)
    ]
    # Before any of them is read.
    in_memory = [entry for entry in mine if entry.rows is None or store.disk is None]
    nbytes, left = sum(entry.nbytes for entry in in_memory), store.memory_limit.left
    if left is not None and nbytes > left:
        raise ResourceExhaustedError(
            f"variables of the checkpoint have {nbytes} bytes, and {left} are left of "
            f"--variable-bytes; {_ADVICE}"
        )
    wholes = wholes_of(checkpoint.index, has_all)
    values = read_ahead(checkpoint.tensor, [entry for entry in mine if entry.rows is None])
    # In their order: a slot variable of a table comes behind it.
    for entry in mine:
        if entry.rows is None:
            store.create([entry.spec], [next(values)])
        elif not entry.spec.slot_of:
            whole = wholes[whole_name(entry.spec)]
            states = [one for one in wholes.values() if one.is_state_of(whole)]
            for arena in read_table(checkpoint, entry.spec, whole, states, store.disk).arenas:
                store.put_table(arena)
    store.recount([entry.name for entry in mine])


def compared(snapshot: Snapshot, base: Checkpoint, before: Mapping[str, Origin]) -> list[Content]:
    """Return what has to be written of a fresh snapshot beside an earlier checkpoint.

    Args:
        snapshot: The snapshot.
        base: The checkpoint.
        before: The origins of its rows, where this process has written it; else empty.

    Raises:
        DataLossError: Bytes of the earlier checkpoint are missing or damaged.
    """
    found = list[Content]()
    for one, value in zip(snapshot.contents, list(snapshot.values), strict=True):
        was, now = before.get(one.spec.name), snapshot.origins.get(one.spec.name)
        if was and now and was.arena() is now.arena() and isinstance(value, ArrayValue):
            changed = _written_since(was, one, value.table, base)
        else:
            changed = changed_rows(one, value.runs(), base)
        found.append(replace(one, changed=changed))
    return found


def _written_since(
    was: Origin, content: Content, rows: TableSnapshot, base: Checkpoint
) -> torch.Tensor | None:
    """Do as `changed_rows` of the rows of an arena, without reading those that nobody has written.

    Each write counts in the times that tables keep in memory; what an eviction has moved has
    another key.
    """
    keys = base.index.tensors.get(was.table + KEYS)
    if keys is None or content.spec.name not in base.index.tensors:
        return None
    size, known = row_nbytes(content.tensor), row_count(keys.tensor)
    most, found, count = size * rows.count // (size + NUMBER_BYTES), [_NO_ROWS], 0
    for start in range(0, rows.count, _COMPARED_AT_ONCE):
        places = torch.arange(start, min(start + _COMPARED_AT_ONCE, rows.count))
        is_new = rows.rows(_TOUCHED, places) > was.writes
        here = min(len(places), max(0, known - start))
        then = torch.empty(here, dtype=torch.int64)
        if here:
            base.read(keys, start * then.itemsize, as_bytes(then))
        is_new[:here] |= rows.rows(_KEYS, places[:here]) != then
        is_new[here:] = True
        found.append(places[is_new])
        count += len(found[-1])
        if count >= most and count:
            return None
    return torch.cat(found)


_NO_ROWS = torch.empty(0, dtype=torch.int64)
_COMPARED_AT_ONCE = 1 << 18

# The first arrays of a table's snapshot.
_KEYS, _TOUCHED = 0, 1


# The most ended saves that are remembered until clients ask for their results.
_REMEMBERED = 32

# Of so many saves a server knows what their rows were, so as not to read them again.
_MOST_BASES = 8

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
        file: Its size and checksums.
        origins: What its rows of tables were those of.
    """

    folder: str
    ended: float
    nbytes: int
    seconds: float
    file: FileEntry
    origins: Mapping[str, Origin]


class Saves:
    """The saves of a server, by their cuts."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._saves, self._failures = 0, 0
        self._last: _Written | None = None
        # Beside which the next ones may be written.
        self._bases: deque[_Written] = deque(maxlen=_MOST_BASES)
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
        ended = [cut for cut, task in self._tasks.items() if task.done()]
        under_way = len(self._tasks) - len(ended)
        for old in ended[:-_REMEMBERED]:
            del self._tasks[old]
        if under_way >= MAX_SAVES:
            raise FailedPreconditionError(
                f"{self._state.settings.label} writes {MAX_SAVES} checkpoints, which "
                "is the most at a time, since each may need the memory of all "
                "variables; save again when one is written"
            )
        opened = _opened(self._state.settings, shared_place(folder))
        beside = shared_place(base) if base else None
        snapshot = self._state.snapshots.take(self._state.store)
        facts = json.dumps(facts_of(self._state))
        self._tasks[cut] = asyncio.ensure_future(self._write(opened, beside, snapshot, facts))

    async def _write(
        self, folder: Folder, base: Place | None, snapshot: Snapshot, facts: str
    ) -> Saved:
        settings, path = self._state.settings, folder.path
        origins = snapshot.origins
        # Rows in memory are compared, which finds damage of the base.
        bases = [*self._bases] if self._state.store.disk is not None else []
        write = partial(_write_part, folder, settings, snapshot, base, bases)
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
        self._last = _Written(root, ended, nbytes, ended - began, part.file, origins)
        self._bases.append(self._last)
        return part, facts

    def report(self) -> CheckpointStatus:
        status = CheckpointStatus(saves=self._saves, failures=self._failures)
        if last := self._last:
            status.folder, status.bytes = last.folder, last.nbytes
            status.age_seconds = self._state.clock() - last.ended
            status.seconds = last.seconds
        return status

    def knows(self, cut: bytes) -> bool:
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
        if self._tasks:
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def _opened(settings: ServerSettings, path: Place) -> Folder:
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


def _write_part(
    folder: Folder,
    settings: ServerSettings,
    snapshot: Snapshot,
    base: Place | None,
    bases: Sequence[_Written],
) -> TensorFile:
    folder.require_there()
    contents: Sequence[Content] = snapshot.contents
    if base is not None:
        try:
            opened = open_checkpoint(base, settings.checkpoints)
            own = opened.index.files.get(part_name(settings.task))
            before = next((each.origins for each in bases if each.file == own), {})
            contents = compared(snapshot, opened, before)
        except (StratagemError, OSError) as error:
            LOG.warning("saves all rows", task=settings.label, base=str(base), why=str(error))
    options = WriteOptions(has_digests=bool(settings.checkpoint_key))
    name = part_name(settings.task)
    return write_part(folder, name, contents, snapshot.taken(contents), options=options)
