"""Time that passes for tables whose rows are evicted by it."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from stratagem_proto.errors import StratagemError, VariableNotFoundError
from stratagem_proto.server_log import LOG
from stratagem_psserver.exactly_once.mutations import Mutations
from stratagem_psserver.state import ServerState
from stratagem_psserver.tables.table import Table
from stratagem_psserver.variables.locks import LockUse


class Passages:
    """Tells tables how much time has passed, and the log that they were told.

    Rows that go are no part of a client's request, so the log has a record of its own for them:
    whoever replays it finds the same rows idle.
    """

    def __init__(self) -> None:
        # When each table was told last, by the clock of its server.
        self._told: WeakKeyDictionary[Table, float] = WeakKeyDictionary()
        self._telling: asyncio.Task[None] | None = None

    def tend(self, state: ServerState) -> None:
        """Begin to tell the tables of a server for which it is time; called now and then."""
        now = state.clock()
        due = []
        for variable in state.store.variables():
            if variable.arena is None or variable.spec.slot_of:
                continue
            table = variable.arena.table
            since = now - self._told.setdefault(table, now)
            if table.idle_time.limit and since * 1000 >= table.idle_time.interval:
                due.append(variable.name)
        if due and (self._telling is None or self._telling.done()):
            self._telling = asyncio.ensure_future(self._tell(state, due))

    async def _tell(self, state: ServerState, names: list[str]) -> None:
        for name in names:
            try:
                await self._pass(state, name)
            except VariableNotFoundError:
                continue
            except StratagemError as error:
                LOG.warning("idle rows stay for now", table=name, error=error.message)

    async def _pass(self, state: ServerState, name: str) -> None:
        await state.changes.caught_up()
        async with state.changing([name], LockUse(state.settings.label, "eviction")):
            arena, mutations = state.store.get(name).arena, state.mutations
            # What is paused is in the midst of an image; there is time later.
            if arena is None or not isinstance(mutations, Mutations) or mutations.is_paused:
                return
            table, now = arena.table, state.clock()
            milliseconds = int((now - self._told[table]) * 1000)
            with mutations.beside():
                await state.compute.run(lambda: table.pass_time(milliseconds), table.nbytes)
                state.changes.passed(name, milliseconds)
            self._told[table] = now

    async def close(self) -> None:
        """Wait for what is under way."""
        if self._telling is not None:
            await self._telling
