"""Restorations: what is read of a checkpoint, kept until it takes place, and announced.

`read_restored` and `read_accounts` read in a thread what a session stages. `Staging` keeps it, and
once all servers have read theirs, `replace` and `Accounts.replace` put it in place. `Announcements`
has what the other tasks wait for. A server that resumes reads its tables by `read_table`, too.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

import torch

from stratagem_proto.division import PartRows, part_of_keys
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from stratagem_proto.protocol import MAX_EXTRA_BYTES, SESSION_ID_BYTES
from stratagem_proto.v1.checkpoint_pb2 import StageVariablesRequest, TableHistory, TrainingRun
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_SLOT, Initializer, TableSpec, VariableSpec
from stratagem_psserver.data_ledgers import DataLedger, DataLedgers, ledgers_from_json
from stratagem_psserver.exactly_once.closures import ClosureLedger, Coordinator, closures_from_json
from stratagem_psserver.tables.arena import Arena
from stratagem_psserver.tables.table import Table
from stratagem_psserver.tables.table_disk import TableDisk
from stratagem_psserver.variables.store import VariableStore
from stratagem_storage.checkpoint.entries import COUNTS, SEEN, SIGHTS, TOUCHED
from stratagem_storage.checkpoint.folder import Checkpoint, part_name
from stratagem_storage.checkpoint.index import refused_if_unsound
from stratagem_storage.checkpoint.wholes import TablePart, Whole, WholeTable, whole_name, wholes_of

_ROWS_AT_ONCE_BYTES = 4 << 20


def read_table(
    checkpoint: Checkpoint,
    spec: VariableSpec,
    whole: Whole,
    slots: Sequence[Whole],
    disk: TableDisk | None = None,
) -> Table:
    """Make a table, or a part of one, with its rows in a checkpoint.

    Args:
        checkpoint: The checkpoint.
        spec: The description of the table on this server.
        whole: The whole table in the checkpoint; maybe a variable that is not a table there.
        slots: Its slots in the checkpoint.
        disk: The disk for the rows of the server's tables, if they have one.

    Raises:
        ResourceExhaustedError: There is not enough memory.
        DataLossError: The checkpoint is damaged.
    """
    # The table has the initializer that it has in the checkpoint.
    as_saved = VariableSpec()
    as_saved.CopyFrom(spec)
    if isinstance(whole, WholeTable):
        as_saved.initializer.CopyFrom(whole.spec.initializer)
    table = Table(as_saved, disk)
    arenas = [Arena(table, _slot_spec(spec, whole, slot)) for slot in slots]
    if isinstance(whole, WholeTable):
        _read_stored(checkpoint, table, arenas, (whole, *slots))
    else:
        _read_dense(checkpoint, table, arenas, (whole, *slots))
    return table


def _slot_spec(spec: VariableSpec, whole: Whole, slot: Whole) -> VariableSpec:
    # If all rows were saved, the initial value is never used.
    initializer = Initializer(constant=0.0)
    if isinstance(slot, WholeTable):
        initializer = slot.spec.initializer
    return VariableSpec(
        name=spec.name + slot.name.removeprefix(whole.name),
        tensor=TensorSpec(
            dtype=slot.tensor.dtype, shape=spec.tensor.shape[: len(slot.tensor.shape)]
        ),
        kind=VARIABLE_KIND_SLOT,
        slot_of=spec.name,
        initializer=initializer,
        table=TableSpec(),
    )


def _read_dense(
    checkpoint: Checkpoint, table: Table, arenas: list[Arena], sources: Sequence[Whole]
) -> None:
    part = PartRows.from_spec(table.value.initial.spec)
    keys = torch.arange(part.count)
    table.adopt(arenas, [keys, torch.zeros_like(keys)], TableHistory())
    row_bytes = sum(arena.row_bytes for arena in table.arenas)
    at_once = max(1, _ROWS_AT_ONCE_BYTES // max(1, row_bytes))
    for start in range(0, part.count, at_once):
        each = [source.read_part(checkpoint, part.some(start, at_once)) for source in sources]
        table.fill(start, dict(zip(table.arenas, each, strict=True)))


@dataclass(frozen=True)
class _Share:
    """The rows that a part of a table gets from one part in the checkpoint.

    Attributes:
        part: The part in the checkpoint.
        positions: The positions of the rows in it.
        keys: Their keys on this server.
        behind: How many writes its clock is behind that of the part with the most writes.
    """

    part: TablePart
    positions: torch.Tensor
    keys: torch.Tensor
    behind: int

    def mark(self, checkpoint: Checkpoint, number: int) -> torch.Tensor:
        """Return the keys, the times of the last writes, or the counts of writes."""
        if number == 0:
            return self.keys
        mark = self.part.vector(checkpoint, TOUCHED if number == 1 else COUNTS)[self.positions]
        return mark.add_(self.behind) if number == 1 else mark


def _read_stored(
    checkpoint: Checkpoint, table: Table, arenas: list[Arena], sources: Sequence[Whole]
) -> None:
    spec, whole = table.value.initial.spec, sources[0]
    assert isinstance(whole, WholeTable)
    parts = _concerned(spec, whole)
    shares = list(_shares(checkpoint, spec, parts))
    marks = [
        torch.cat([share.mark(checkpoint, number) for share in shares])
        for number in range(len(table.marks))
    ]
    table.adopt(arenas, marks, _history(spec, parts))
    place = 0
    for share in shares:
        for rows in _rows_of(checkpoint, table, share, sources[1:]):
            table.fill(place, rows)
            place += len(rows[table.value])
    seen = torch.cat([part.vector(checkpoint, SEEN) for part in parts])
    sights = torch.cat([part.vector(checkpoint, SIGHTS) for part in parts])
    mine = _is_mine(spec, seen)
    table.admission.restore(seen[mine], sights[mine])
    table.fit()


def _concerned(spec: VariableSpec, whole: WholeTable) -> list[TablePart]:
    """Return the parts in a checkpoint that may have rows of the part that a spec describes."""
    parts, keys = whole.parts, spec.table.dynamic
    if whole.is_dynamic:
        same = len(parts) == max(1, keys.parts)
        return [parts[keys.part]] if same else list(parts)
    mine = PartRows.from_spec(spec)
    return [part for part in parts if part.rows.shared(mine)[0]] or list(parts[:1])


def _shares(
    checkpoint: Checkpoint, spec: VariableSpec, parts: Sequence[TablePart]
) -> Iterator[_Share]:
    latest = max(part.history.writes for part in parts)
    mine = PartRows.from_spec(spec)
    for part in parts:
        keys = part.keys(checkpoint)
        positions = _is_mine(spec, keys).nonzero().squeeze(1)
        behind = latest - part.history.writes
        yield _Share(part, positions, mine.local(keys[positions]), behind)


def _is_mine(spec: VariableSpec, keys: torch.Tensor) -> torch.Tensor:
    """Return a mask of the keys of a whole table that belong to the part of a spec."""
    if spec.table.HasField("dynamic"):
        dynamic = spec.table.dynamic
        return part_of_keys(keys, max(1, dynamic.parts)) == dynamic.part
    return PartRows.from_spec(spec).has(keys)


def _history(spec: VariableSpec, parts: Sequence[TablePart]) -> TableHistory:
    """Return the history of a part; the counts of several parts go to the first part here."""
    if len(parts) == 1:
        return parts[0].history
    histories = [part.history for part in parts]
    counts = histories if not spec.table.dynamic.part else []
    latest = max(each.writes for each in histories)
    evicted = sum(each.evicted_rows for each in counts)
    # Rows of several parts are taken for written now: these have other times.
    return TableHistory(
        writes=latest,
        swept=latest - max(each.writes - each.swept for each in histories),
        evicted_rows=evicted,
        aged=evicted,
        dropped_gradients=sum(each.dropped_gradients for each in counts),
    )


def _rows_of(
    checkpoint: Checkpoint, table: Table, share: _Share, slots: Sequence[Whole]
) -> Iterator[dict[Arena, torch.Tensor]]:
    """Yield the rows of a share with their state, some at a time."""
    parts = list[TablePart | None]()
    for slot in slots:
        assert isinstance(slot, WholeTable)
        same = [part for part in slot.parts if part.table.name == share.part.table.name]
        # There is none if the optimizer had not stepped this part yet.
        parts.append(same[0] if same else None)
    begin = 0
    for positions, values in share.part.runs(checkpoint, share.positions):
        keys = share.keys[begin : begin + len(positions)]
        rows = {table.value: values}
        for arena, part in zip(table.arenas[1:], parts, strict=True):
            rows[arena] = part.rows_at(checkpoint, positions) if part else arena.begun(keys)
        yield rows
        begin += len(positions)


@dataclass(frozen=True)
class Restored:
    """A variable as it is in a checkpoint.

    Attributes:
        name: The variable.
        value: Its value; if it is a table, its rows with their slots.
        slots: The values of its slot variables, by their names without the variable's.
    """

    name: str
    value: torch.Tensor | Table
    slots: Mapping[str, torch.Tensor]

    @property
    def kept(self) -> set[str]:
        """The names of the slots that the checkpoint has."""
        names = {self.name + suffix for suffix in self.slots}
        if isinstance(self.value, Table):
            names |= {arena.initial.spec.name for arena in self.value.arenas}
        return names


def read_restored(
    checkpoint: Checkpoint, specs: Sequence[VariableSpec], disk: TableDisk | None = None
) -> list[Restored]:
    """Read variables from a checkpoint; of a part of a partitioned variable, only its rows.

    Raises:
        NotFoundError: It does not contain a variable.
        InvalidArgumentError: A variable has another shape or dtype in the checkpoint.
        DataLossError: The checkpoint is damaged.
    """
    with refused_if_unsound(str(checkpoint.folder)):
        wholes = wholes_of(checkpoint.index)
        for spec in specs:
            _require_fit(spec, wholes)
        slots: dict[str, list[Whole]] = {}
        for whole in wholes.values():
            slots.setdefault(whole.slot_of, []).append(whole)
        return [_read(checkpoint, spec, wholes[whole_name(spec)], slots, disk) for spec in specs]


def _require_fit(spec: VariableSpec, wholes: Mapping[str, Whole]) -> None:
    name = whole_name(spec)
    if name not in wholes:
        raise NotFoundError(f"the checkpoint has no {name!r}", variable=name)
    tensor = wholes[name].tensor
    split = spec.HasField("partition")
    shape = list(spec.partition.full_shape if split else spec.tensor.shape)
    if (list(tensor.shape), tensor.dtype) != (shape, spec.tensor.dtype):
        raise InvalidArgumentError(
            f"the checkpoint has {name!r} with shape {list(tensor.shape)}, but here it "
            f"has shape {shape}, or another dtype; restore into the model that was "
            "saved",
            variable=name,
        )


def _read(
    checkpoint: Checkpoint,
    spec: VariableSpec,
    whole: Whole,
    slots: Mapping[str, Sequence[Whole]],
    disk: TableDisk | None,
) -> Restored:
    mine = slots.get(whole.name, ())
    if spec.HasField("table"):
        rows = [slot for slot in mine if slot.is_split]
        mine = [slot for slot in mine if not slot.is_split]
        value: torch.Tensor | Table = read_table(checkpoint, spec, whole, rows, disk)
    else:
        value = _rows(checkpoint, spec, whole, True)
    state = {
        slot.name.removeprefix(whole.name): _rows(checkpoint, spec, slot, slot.is_split)
        for slot in mine
    }
    return Restored(spec.name, value, state)


def _rows(checkpoint: Checkpoint, spec: VariableSpec, whole: Whole, is_split: bool) -> torch.Tensor:
    if not is_split or not spec.HasField("partition"):
        return whole.read(checkpoint)
    return whole.read_part(checkpoint, PartRows.from_spec(spec))


def replace(store: VariableStore, restored: Sequence[Restored]) -> list[str]:
    """Replace the values and slots of variables by those of a checkpoint; their locks are held.

    Returns:
        The slot variables that were deleted, because the checkpoint does not have them.

    Raises:
        VariableNotFoundError: A variable does not exist any more; nothing is changed.
    """
    for each in restored:
        store.get(each.name)
    gone: list[str] = []
    for each in restored:
        kept = each.kept
        gone += store.delete([name for name in store.slots(each.name) if name not in kept])
        _put(store, each)
    store.recount([each.name for each in restored])
    return gone


def _put(store: VariableStore, restored: Restored) -> None:
    if isinstance(restored.value, Table):
        for arena in restored.value.arenas:
            store.put_table(arena)
    else:
        store.put_value(restored.name, restored.value)
    for suffix, value in restored.slots.items():
        store.put_slot(restored.name + suffix, restored.name, value)


@dataclass(frozen=True)
class Accounts:
    """The ledgers of data and of scheduled functions at the moment of a checkpoint.

    The functions that had not ended then get new coordinator names. Some have ended since under
    their old names, by which nothing of them is applied any more.

    Attributes:
        data: The ledgers of data; None to keep the server's present ones.
        closures: By new coordinator name: the functions that had not ended, and their mutations.
    """

    data: Sequence[DataLedger] | None
    closures: Mapping[bytes, Coordinator]

    def replace(self, data: DataLedgers, closures: ClosureLedger) -> None:
        """Replace a server's ledgers by these."""
        if self.data is not None:
            data.replace(self.data)
        closures.adopt(self.closures)


def read_accounts(checkpoint: Checkpoint, request: StageVariablesRequest, task: int) -> Accounts:
    """Read the ledgers that a request asks for."""
    servers = checkpoint.index.servers
    renamed = partial(_renamed, request.restoration)
    with refused_if_unsound(str(checkpoint.folder)):
        own = servers.get(part_name(task), {}) if request.closures else {}
        closures = {renamed(name): one for name, one in closures_from_json(own.get("closures", ()))}
        data = _ledgers(servers.values()) if request.data else None
        for ledger in data or ():
            ledger.leave_to_next(renamed, again=request.closures)
        return Accounts(data, closures)


def _ledgers(parts: Collection[Mapping[str, Any]]) -> Sequence[DataLedger] | None:
    """Return the ledgers of the server that kept them; None if the checkpoint has no such entry."""
    known = [part["data"] for part in parts if "data" in part]
    ledgers = [ledger for facts in known for ledger in ledgers_from_json(facts)]
    return ledgers if known else None


def _renamed(restoration: bytes, space: bytes) -> bytes:
    return blake2b(restoration + space, digest_size=SESSION_ID_BYTES).digest()


class StagedVariables(NamedTuple):
    """What was read for a restoration.

    Attributes:
        variables: The values of variables.
        accounts: The ledgers of data and of scheduled functions.
    """

    variables: Sequence[Restored]
    accounts: Accounts


_NOT_STAGED = StageVariablesRequest(), None


class Staging:
    """The restorations that sessions have staged or are staging, at most one each.

    Args:
        label: The server's name, for messages.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._staged: dict[bytes, tuple[StageVariablesRequest, asyncio.Task[StagedVariables]]] = {}

    def reading(
        self,
        session_id: bytes,
        request: StageVariablesRequest,
        begin: Callable[[], Coroutine[Any, Any, StagedVariables]],
    ) -> asyncio.Task[StagedVariables]:
        """Return what reads a restoration; begun now, in place of another, if it was not before."""
        asked = StageVariablesRequest()
        asked.CopyFrom(request)
        asked.ClearField("wait_seconds")
        known, reading = self._staged.get(session_id, _NOT_STAGED)
        if reading is None or known != asked:
            reading = asyncio.ensure_future(begin())
            # Whoever has asked may not be there any more to hear of a failure.
            reading.add_done_callback(lambda read: read.cancelled() or read.exception())
            self._staged[session_id] = asked, reading
        return reading

    def take(self, session_id: bytes, restoration: bytes) -> StagedVariables:
        """Remove and return what a session has staged."""
        known, reading = self._staged.pop(session_id, _NOT_STAGED)
        if reading is None or known.restoration != restoration or not reading.done():
            raise FailedPreconditionError(
                f"{self._label} has not read what it is to restore; it may have restarted meanwhile"
            )
        return reading.result()

    @property
    def is_used(self) -> bool:
        return bool(self._staged)

    def forget(self, session_id: bytes) -> None:
        """Drop what a session has staged, if anything."""
        self._staged.pop(session_id, None)


def check_run(run: TrainingRun) -> None:
    """Raise InvalidArgumentError if what a client tells of a run is too long to be kept."""
    if max(len(run.extra), len(run.path), len(run.folder)) > MAX_EXTRA_BYTES:
        raise InvalidArgumentError(
            f"a run is told with {len(run.extra)} characters of `extra`, and paths of "
            f"{len(run.path)} and {len(run.folder)}; at most {MAX_EXTRA_BYTES} are kept of each"
        )


_MOST_CHARACTERS = 1 << 20
"""The limit of all identities together, beyond which the oldest are dropped. The last one stays."""


class Announcements:
    """The announced restorations, in their order.

    Announcements from a checkpoint count again once the session that made them is resumed. A
    program that is started again as a whole makes new ones before its workers go on.

    Attributes:
        run: What tasks train together; None before anybody has told of it. A task that is started
            again joins it.
    """

    def __init__(self) -> None:
        self._known: list[tuple[str, bytes]] = []
        # The sessions of a checkpoint that were not resumed since.
        self._awaited: set[bytes] = set()
        self.run: TrainingRun | None = None

    def add(self, identity: str, session_id: bytes) -> None:
        """Note that a session has restored a checkpoint."""
        self._known.append((identity, session_id))
        while len(self._known) > 1 and sum(len(one) for one, _ in self._known) > _MOST_CHARACTERS:
            del self._known[0]

    def begin(self, run: TrainingRun) -> None:
        """Note which run has begun; `check_run` has seen it."""
        if run.restoration or run.ended or self.run is None:
            self.run = run

    def end(self) -> None:
        """Note that the run is over, if there is one."""
        if self.run is not None:
            self.run.ended = True

    def run_facts(self) -> str | None:
        return None if self.run is None else b64encode(self.run.SerializeToString()).decode()

    def restore_run(self, facts: str | None) -> None:
        self.run = None if facts is None else TrainingRun.FromString(b64decode(facts))

    def session_opened(self, session_id: bytes) -> None:
        """Note that a session is open, which may be one of a checkpoint."""
        self._awaited.discard(session_id)

    @property
    def identities(self) -> Sequence[str]:
        """The identities of the announced restorations."""
        return [identity for identity, session in self._known if session not in self._awaited]

    def facts(self) -> list[tuple[str, str]]:
        return [(identity, session_id.hex()) for identity, session_id in self._known]

    def awaited(self) -> list[str]:
        """Return the sessions whose announcements do not count yet, as JSON."""
        return sorted(session_id.hex() for session_id in self._awaited)

    def restore(self, facts: Sequence[tuple[str, str]], awaited: Sequence[str]) -> None:
        """Restore announcements."""
        self._known = [(one, bytes.fromhex(session)) for one, session in facts]
        self._awaited = {bytes.fromhex(session) for session in awaited}
