"""Tables of a program without a cluster: their rows are kept and stepped by the code of servers.

A server is one thread that holds what its requests read and write. Here a lock takes that place,
since replicas are threads of one process.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from weakref import WeakKeyDictionary, WeakValueDictionary, finalize

import torch

from stratagem._core.names import Origin
from stratagem._gradients import OptimizerStep
from stratagem._hosting.adoption import Adoption
from stratagem._parameter_server.hosting.gradients import Programs
from stratagem._parameter_server.tables.parameter import TableParameter
from stratagem._parameter_server.tables.tables import HostedTable, table_of_keys
from stratagem_proto.errors import NotFoundError
from stratagem_proto.programs.optimizers import SlotName
from stratagem_proto.v1.parameter_server_pb2 import UpdateHeader
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_psserver.optimization.gradients import Gradient
from stratagem_psserver.optimization.optimizers import Optimizers
from stratagem_psserver.restoration import Restored, read_restored
from stratagem_psserver.restoration import replace as replace_restored
from stratagem_psserver.variables.snapshots import Snapshots
from stratagem_psserver.variables.store import VariableStore
from stratagem_storage.checkpoint.folder import Checkpoint, changed_rows
from stratagem_storage.checkpoint.parts import Content
from stratagem_storage.checkpoint.wholes import WholeTable, wholes_of

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy
    from stratagem._hosting.replica_views import ParameterRegistry
    from stratagem._parameter_server.tables.tables import TableShard
    from stratagem._parameter_server.tables.variable import DynamicTable, TableVariable
    from stratagem._parameter_server.variables.variable import AnyStore
    from stratagem_psserver.tables.table import Table


class OwnTables:
    """The tables that a program without a cluster has made and that live, and their rows.

    It is the store of its tables, as a `RemoteStore` is that of tables on servers, and what they
    ask whether they may be read and written.

    Args:
        parameters: Where modules see tables.
    """

    def __init__(self, parameters: ParameterRegistry) -> None:
        self.table_changes = 0
        self._parameters = parameters
        self._lock = threading.RLock()
        self._rows, self._snapshots = VariableStore(), Snapshots()
        self._optimizers = Optimizers(self._rows)
        self._programs = Programs()
        self._program = b"", OptimizerProgram()
        # By name. A parameter owns its table, so nobody else keeps it alive.
        self._tables: WeakValueDictionary[str, DynamicTable] = WeakValueDictionary()
        self._made = 0
        # When each was told last how much time has passed, in seconds of the monotonic clock.
        self._told: WeakKeyDictionary[Table, float] = WeakKeyDictionary()
        self._deferred: tuple[Checkpoint, set[str]] | None = None
        # Tables that were collected, in the midst of anything: by name, and when they were made.
        self._gone: list[tuple[str, int]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnTables:
        """Return one without tables: modules stay with the strategy they were built in."""
        return OwnTables(copy.deepcopy(self._parameters, memo))

    def __iter__(self) -> Iterator[DynamicTable]:
        return iter(sorted(self._tables.values(), key=lambda table: table.parts[0].place.ordinal))

    # Making tables.

    def host(self, adoption: Adoption, origin: Origin | None, strategy: AnyStrategy) -> None:
        """Make a table of a parameter without values, and let modules see it by that."""
        table = table_of_keys(cast("AnyStore", self), self._made, adoption, self)
        (part,) = table.parts
        part.origin = origin
        spec = part.spec
        assert isinstance(adoption.parameter, TableParameter)
        with self._quiet():
            self._rows.create([spec], [table.no_rows])
            try:
                if self._deferred is not None and spec.name in self._deferred[1]:
                    self._put(read_restored(self._deferred[0], [spec]))
            except BaseException:
                self._rows.delete([spec.name])
                raise
            self._made += 1
            self._tables[spec.name] = table
        finalize(table, self._gone.append, (spec.name, part.place.ordinal)).atexit = False
        table._join(strategy)
        hosted = HostedTable(table, adoption.parameter, self._parameters.devices)
        self._parameters.host(hosted, adoption.owners)

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Hold the lock; what is gone, or was idle for too long, is not there any more."""
        with self._lock:
            while self._gone:
                name, made = self._gone.pop()
                variable = self._rows.find(name)
                # Another one may have got the name.
                if variable is not None and variable.spec.ordinal == made:
                    self._optimizers.forget(self._rows.delete([name]))
            self._pass_time()
            yield

    def remove(self, names: Collection[str]) -> None:
        """Delete the rows of tables that the program has forgotten."""
        for table in list(self):
            if table.name in names:
                table.parts[0].end()
                self._tables.pop(table.name)
                self._gone.append((table.name, table.parts[0].place.ordinal))

    def forget_optimizer(self, name: str) -> None:
        """Delete the state of an optimizer for all tables."""
        with self._quiet():
            slots = [one.name for one in self._rows.variables() if one.spec.slot_of]
            parsed = [(one, SlotName.parse(one)) for one in slots]
            self._rows.delete([one for one, slot in parsed if slot and slot.optimizer == name])

    # What tables ask.

    def set_table(
        self, table: TableVariable, value: torch.Tensor, write: Callable[[], None]
    ) -> None:
        """Write a whole value: nobody else has to agree."""
        write()

    def agree_on(self, table: TableVariable) -> None:
        """There is nobody to agree with."""

    def rows(
        self, variables: Sequence[TableShard], rows: Sequence[torch.Tensor], training: bool = False
    ) -> list[torch.Tensor]:
        """Return copies of rows as they are now, whether or not for training."""
        with self._quiet():
            pairs = list(zip(variables, rows, strict=True))
            for variable in variables:
                variable.require_remembered()
            return [self._rows.get(one.name).rows(wanted) for one, wanted in pairs]

    def keys(self, part: TableShard, limit: int) -> Iterator[torch.Tensor]:
        """Yield the keys that have rows, ascending, at most so many at a time."""
        part.require_remembered()
        with self._quiet():
            found = self._rows.get(part.name).keys().sort().values
        yield from found.split(limit) if len(found) else ()

    def _pass_time(self) -> None:
        """Evict what was idle for too long; the lock is held."""
        now = time.monotonic()
        for variable in list(self._rows.variables()):
            if variable.arena is None or variable.spec.slot_of:
                continue
            table = variable.arena.table
            since = (now - self._told.setdefault(table, now)) * 1000
            if table.idle_time.limit and since >= table.idle_time.interval:
                table.pass_time(int(since))
                self._told[table] = now

    # Steps.

    def step(
        self, step: OptimizerStep, gradients: Sequence[tuple[int, TableVariable, Any]]
    ) -> None:
        """Have an optimizer step rows, as servers do.

        Args:
            step: The step.
            gradients: The number of the param group, the table and its reduced gradient.

        Raises:
            StratagemError: As of a step on a server; nothing is changed.
        """
        encoded = self._programs.encoded(step)
        if self._program[0] is not encoded:
            program = UpdateHeader.FromString(encoded).program.optimizer
            self._program = encoded, program
        given = [
            Gradient(table.parts[0].name, group, values.cpu(), rows)
            for group, table, gradient in gradients
            for values, rows in table.gradients(gradient)
        ]
        with self._quiet():
            ready = self._optimizers.prepare(self._program[1], given)
            ready.run()
            self._optimizers.commit(ready)
        for _, table, _ in gradients:
            table.forget()

    def forget_pulled(self) -> None:
        """Have rows read anew, as a run ends."""
        for table in self._tables.values():
            table.forget()

    # Checkpoints.

    def snapshot(self) -> TablesSnapshot:
        """Return the rows of all tables and their state as of now."""
        with self._quiet():
            return TablesSnapshot(self._snapshots, self._rows)

    def stage(self, checkpoint: Checkpoint, strict: bool) -> StagedTables:
        """Read what a checkpoint has of tables; nothing is changed before it is `put`.

        Raises:
            NotFoundError: It lacks one, and `strict` is set.
            InvalidArgumentError: One has another shape, or is none of keys there.
            DataLossError: The checkpoint is damaged.
        """
        wholes = wholes_of(checkpoint.index)
        tables = {
            name
            for name, one in wholes.items()
            if isinstance(one, WholeTable) and one.is_dynamic and not one.slot_of
        }
        own = [table.parts[0].spec for table in self]
        missing = [spec.name for spec in own if spec.name not in wholes]
        if strict and missing:
            raise NotFoundError(
                f"the checkpoint has no {', '.join(map(repr, missing))}; restore into the program "
                "that was saved, or pass strict=False to leave what it lacks as it is",
                variable=missing[0],
            )
        restored = read_restored(checkpoint, [one for one in own if one.name in wholes])
        theirs = {name for name, one in wholes.items() if {name, one.slot_of} & tables}
        left = {one.name for one in restored}
        later = {name for name in theirs if not {name, wholes[name].slot_of} & left}
        put = partial(self._replace, checkpoint, later, restored)
        return StagedTables(theirs, missing, put)

    def _replace(
        self, checkpoint: Checkpoint, later: set[str], restored: Sequence[Restored]
    ) -> None:
        with self._quiet():
            self._put(restored)
            self._deferred = checkpoint, later
        self.table_changes += 1
        self.forget_pulled()

    def _put(self, restored: Sequence[Restored]) -> None:
        replace_restored(self._rows, restored)
        if self._deferred is not None:
            for one in restored:
                # With its slots, which go by its name.
                self._deferred[1].difference_update({one.name, *one.kept})

    def names(self) -> list[str]:
        """Return the names of what a checkpoint has for tables that nobody has made yet."""
        return [] if self._deferred is None else sorted(self._deferred[1])


class StagedTables(NamedTuple):
    """What was read of a checkpoint for tables.

    Attributes:
        names: What is of tables in the checkpoint, with the state of optimizers.
        missing: The tables of this program that the checkpoint lacks.
        put: Gives tables what was read.
    """

    names: set[str]
    missing: list[str]
    put: Callable[[], None]


class TablesSnapshot:
    """The rows of all tables as of one moment; close it in the end."""

    def __init__(self, snapshots: Snapshots, rows: VariableStore) -> None:
        self._snapshots = snapshots
        self._snapshot = snapshots.take(rows)

    def contents(self, base: Checkpoint | None) -> list[Content]:
        """Return what there is to write, or what differs from an earlier checkpoint; on any thread.

        Raises:
            DataLossError: Bytes of the earlier checkpoint are missing or damaged.
        """
        contents, values = self._snapshot.contents, list(self._snapshot.values)
        if base is None:
            return list(contents)
        return [
            replace(one, changed=changed_rows(one, value.runs(), base))
            for one, value in zip(contents, values, strict=True)
        ]

    def taken(self, contents: Sequence[Content]) -> Iterator[torch.Tensor]:
        """Yield the values of contents once, in runs; on any thread."""
        return self._snapshot.taken(contents)

    def close(self) -> None:
        """Release what is kept for it."""
        self._snapshots.close(self._snapshot)
