"""Snapshots that sessions read from."""

from __future__ import annotations

import asyncio

import pytest
import torch

from stratagem_proto.errors import FailedPreconditionError, SessionLostError
from stratagem_proto.tensors import spec_of
from stratagem_proto.v1.session_pb2 import ROLE_EVALUATOR, Task
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_MODEL, VariableSpec
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState

SESSION, CUT = b"s" * 16, b"c" * 16


@pytest.fixture
def state() -> ServerState:
    """A server's, with one variable and a session whose lease has run out."""
    state = ServerState(ServerSettings(lease_seconds=0.0))
    value = torch.zeros(2)
    spec = VariableSpec(name="v", tensor=spec_of(value), kind=VARIABLE_KIND_MODEL)
    state.store.create([spec], [value])
    state.open_session(SESSION, ROLE_EVALUATOR, Task(job="evaluator"))
    return state


def add_one(state: ServerState) -> int:
    """Changes the variable; returns where its memory is."""

    async def add() -> int:
        async with state.changing(["v"]):
            variable = state.store.get("v")
            variable.value += 1
            variable.version += 1
        return variable.value.data_ptr()

    return asyncio.run(add())


def test_a_variable_that_changes_is_copied_once(state: ServerState) -> None:
    before = state.store.get("v").value.data_ptr()
    state.held.hold(SESSION, CUT, state.store)
    assert state.held.of(SESSION, CUT).get("v").value.data_ptr() == before
    moved = add_one(state)
    assert moved != before
    assert add_one(state) == moved
    kept = state.held.of(SESSION, CUT).get("v")
    assert kept.value.tolist() == [0.0, 0.0]
    assert (kept.version, state.store.get("v").version) == (1, 3)


def test_the_end_of_a_lease_lets_go_of_a_snapshot(state: ServerState) -> None:
    state.held.hold(SESSION, CUT, state.store)
    before = state.store.get("v").value.data_ptr()
    assert [ended.id for ended in state.end_leases()] == [SESSION]
    with pytest.raises(FailedPreconditionError, match="lease ran out"):
        state.held.of(SESSION, CUT)
    with pytest.raises(SessionLostError):
        state.session(SESSION)
    assert add_one(state) == before


def test_a_newer_snapshot_takes_the_place_of_the_last(state: ServerState) -> None:
    state.held.hold(SESSION, CUT, state.store)
    add_one(state)
    state.held.hold(SESSION, b"d" * 16, state.store)
    assert not state.held.knows(SESSION, CUT)
    kept = state.held.of(SESSION, b"d" * 16).get("v")
    assert kept.value.tolist() == [1.0, 1.0]
