"""The status of a parameter server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from shutil import disk_usage

from stratagem_proto.v1 import status_pb2 as pb
from stratagem_proto.v1.variable_pb2 import VariableKind
from stratagem_psserver.checkpoints import Saves
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.state import ServerState
from stratagem_psserver.tables.table_disk import TableDisk
from stratagem_psserver.variables.store import Variable

# So many variables take a millisecond; then other requests have their turn.
_AT_ONCE = 500


class ParameterServerFacts:
    """Fills in the part of a status that only parameter servers have."""

    def __init__(self, state: ServerState, saves: Saves) -> None:
        self._state, self._saves = state, saves

    async def fill(self, status: pb.GetStatusResponse, with_variables: bool) -> None:
        state, mine = self._state, status.parameter_server
        now = state.clock()
        for session in state.ledger.opened():
            status.sessions.append(self._session(session, now))
        status.lost.extend(state.lost.report(now))
        mine.staged.CopyFrom(state.budget.report())
        if (limit := state.store.memory_limit.limit) is not None:
            mine.room.used, mine.room.limit = state.store.memory_limit.used, limit
        mine.groups.extend(state.clocks.report())
        mine.waits.extend(state.waits.report())
        mine.waiters.extend(state.waits.waiters())
        mine.checkpoint.CopyFrom(self._saves.report())
        if state.resumed:
            mine.checkpoint.restored_from = state.settings.restore
        if (log := state.changes.log) and (report := log.report()):
            mine.log.CopyFrom(report)
        if (disk := state.store.disk) is not None:
            mine.table_files.CopyFrom(_table_files(disk, list(state.store.variables())))
        if state.succession.incumbent.number:
            mine.incumbent.CopyFrom(state.succession.incumbent)
        if (published := state.publication.report()) is not None:
            mine.publication.CopyFrom(published)
        mine.recorded_closures = state.closures.count
        mine.recorded_closure_bytes = state.closures.nbytes
        await self._fill_variables(mine, with_variables)

    def _session(self, session: Session, now: float) -> pb.SessionStatus:
        status = pb.SessionStatus(
            digest=session.id.hex()[:8],
            role=session.role,
            task=session.task,
            silent_seconds=now - session.heard,
            idle_seconds=now - session.requested,
            doing=session.doing,
            awaited=session.awaited,
            waits=session.waits,
            pace=session.pace,
            received_bytes=session.received,
            sent_bytes=session.sent,
            scalars=session.scalars,
            release=session.release,
        )
        released = self._state.waits.released(session.label)
        if released is not None:
            status.released_seconds = now - released
        return status

    async def _fill_variables(self, mine: pb.ParameterServerStatus, listed: bool) -> None:
        totals = dict[VariableKind, pb.VariableTotal]()
        variables = list(self._state.store.variables())
        for begin in range(0, len(variables), _AT_ONCE):
            some = variables[begin : begin + _AT_ONCE]
            _add_up(totals, some)
            if listed:
                mine.variables.extend(
                    pb.VariableStatus(variable=one.info(), bytes=nbytes_of(one)) for one in some
                )
            await asyncio.sleep(0)
        mine.totals.extend(totals[kind] for kind in sorted(totals))


def _table_files(disk: TableDisk, variables: Sequence[Variable]) -> pb.TableFilesStatus:
    counts, logs = disk.counts, [store.log for store in disk.stores]
    tables = [each.arena.table for each in variables if each.arena and _is_table(each)]
    return pb.TableFilesStatus(
        resident=pb.Budget(used=disk.resident_bytes, limit=disk.budget),
        file_bytes=disk.file_bytes,
        found_rows=counts.found,
        missed_rows=counts.missed,
        reads=sum(log.reads for log in logs),
        read_bytes=sum(log.read_bytes for log in logs),
        read_seconds=sum(log.read_seconds for log in logs),
        evicted_bytes=counts.evicted_bytes,
        changed_bytes=counts.changed_bytes,
        written_bytes=sum(log.written_bytes for log in logs),
        lookups=counts.lookups,
        rows=sum(map(len, tables)),
        row_bytes=sum(len(each) * sum(of.row_bytes for of in each.arenas) for each in tables),
        folder=disk.folder,
        free_bytes=disk_usage(disk.folder).free,
        failure=disk.failure,
    )


def _is_table(variable: Variable) -> bool:
    """Return whether it is a table, and no slot of one."""
    return variable.arena is not None and variable.arena is variable.arena.table.value


def _add_up(totals: dict[VariableKind, pb.VariableTotal], variables: Sequence[Variable]) -> None:
    for variable in variables:
        kind, arena = variable.spec.kind, variable.arena
        total = totals.get(kind)
        if total is None:
            total = totals[kind] = pb.VariableTotal(kind=kind)
        total.count += 1
        total.bytes += nbytes_of(variable)
        if arena is not None and _is_table(variable):
            total.tables += 1
            total.table_rows += len(arena.table)


def nbytes_of(variable: Variable) -> int:
    """Return the memory of a variable; that of a table includes its optimizers' state."""
    arena = variable.arena
    if arena is not None and _is_table(variable):
        return arena.table.nbytes
    return variable.value.nbytes
