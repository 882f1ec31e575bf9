"""Snapshots that sessions read from."""

from __future__ import annotations

import asyncio

import pytest
import torch

from stratagem_proto.errors import FailedPreconditionError, SessionLostError
from stratagem_proto.v1.session_pb2 import ROLE_EVALUATOR, Task
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_MODEL, VariableSpec
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState
from stratagem_psserver.variables.locks import LockUse
from stratagem_psserver.variables.snapshots import HeldSnapshots, Snapshots
from tests.psserver.tables.specs import hosting, table_of, table_spec

SESSION, CUT = b"s" * 16, b"c" * 16


@pytest.fixture
def state() -> ServerState:
    """A server's, with one variable and a session whose lease has run out."""
    return state_of()


def state_of(variable_bytes: int | None = None) -> ServerState:
    settings = ServerSettings(lease_seconds=0.0, variable_bytes=variable_bytes)
    state = ServerState(settings)
    value = torch.zeros(2)
    spec = VariableSpec(name="v", tensor=spec_of(value), kind=VARIABLE_KIND_MODEL)
    state.store.create([spec], [value])
    state.open_session(Session(SESSION, ROLE_EVALUATOR, Task(job="evaluator")))
    return state


def add_one(state: ServerState) -> int:
    """Changes the variable; returns where its memory is."""

    async def add() -> int:
        async with state.changing(["v"], LockUse("a client", "update")):
            variable = state.store.get("v")
            variable.value += 1
            variable.version += 1
        return variable.value.data_ptr()

    return asyncio.run(add())


def test_a_variable_that_changes_is_copied_once(state: ServerState) -> None:
    before = state.store.get("v").value.data_ptr()
    state.held.hold(SESSION, CUT, state.store)
    assert state.held.get(SESSION, CUT).get("v").value.data_ptr() == before
    moved = add_one(state)
    assert moved != before
    assert add_one(state) == moved
    kept = state.held.get(SESSION, CUT).get("v")
    assert kept.value.tolist() == [0.0, 0.0]
    assert (kept.version, state.store.get("v").version) == (1, 3)


def test_the_end_of_a_lease_lets_go_of_a_snapshot(state: ServerState) -> None:
    state.held.hold(SESSION, CUT, state.store)
    before = state.store.get("v").value.data_ptr()
    assert [ended.id for ended in state.end_leases()] == [SESSION]
    with pytest.raises(FailedPreconditionError, match="lease ran out"):
        state.held.get(SESSION, CUT)
    with pytest.raises(SessionLostError):
        state.ledger.session(SESSION, state.clock())
    assert add_one(state) == before


def test_a_newer_snapshot_takes_the_place_of_the_last(state: ServerState) -> None:
    state.held.hold(SESSION, CUT, state.store)
    add_one(state)
    state.held.hold(SESSION, b"d" * 16, state.store)
    assert not state.held.knows(SESSION, CUT)
    kept = state.held.get(SESSION, b"d" * 16).get("v")
    assert kept.value.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("room", [15, 16, None])
def test_a_snapshot_has_the_room_that_variables_leave(room: int | None) -> None:
    """Of a variable of 8 bytes."""
    state = state_of(variable_bytes=room)
    state.held.hold(SESSION, CUT, state.store)
    assert state.held.get(SESSION, CUT).snapshot.nbytes == 0
    add_one(state)
    if room == 15:
        with pytest.raises(FailedPreconditionError, match="leave no room for it"):
            state.held.get(SESSION, CUT)
        there = state.store.get("v").value.data_ptr()
        assert add_one(state) == there
    else:
        assert state.held.get(SESSION, CUT).snapshot.nbytes == 8


def test_the_oldest_snapshot_makes_room_for_others() -> None:
    state, other = state_of(variable_bytes=16 + 8), b"o" * 16
    state.held.hold(SESSION, CUT, state.store)
    add_one(state)
    state.held.hold(other, CUT, state.store)
    assert state.held.knows(SESSION, CUT)
    add_one(state)
    assert state.held.knows(SESSION, CUT)
    add_one(state)
    state.held.hold(b"p" * 16, CUT, state.store)
    add_one(state)
    assert not state.held.knows(SESSION, CUT)
    assert state.held.knows(other, CUT)


def test_kept_rows_of_tables_count() -> None:
    store, _ = hosting(table_spec("t", (80, 2)))
    table, keys = table_of(store.get("t")), torch.arange(9)

    def write() -> None:
        found = table.find(keys)
        table.make_room(found, VariableMemoryLimit())
        table.store(found, {table.value: torch.ones(9, 2)})

    write()
    held = HeldSnapshots(Snapshots(), VariableMemoryLimit(0))
    held.hold(SESSION, CUT, store)
    held.fit()
    assert held.knows(SESSION, CUT)
    write()
    held.fit()
    assert not held.knows(SESSION, CUT)
