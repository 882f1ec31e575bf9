"""Gradients in shared memory step small variables as one, and come to the same."""

from __future__ import annotations

import pytest
import torch

from stratagem._ps_client.requests import updates
from stratagem._ps_client.requests.reads import Reading, and_read, following
from stratagem._ps_client.requests.variables import delete
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.connections import connected, make
from tests.conftest import TOKEN
from tests.psserver.wire import optimizer_program

pytestmark = pytest.mark.fast_servers

SHAPES = {"table": (1500, 16), "bias": (1501,), "mean": (), "dense": (33, 301)}
STEPS = 6


def test_steps_in_shared_memory_are_those_of_a_local_optimizer() -> None:
    torch.manual_seed(0)
    local = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    into = {name: torch.empty(shape) for name, shape in SHAPES.items()}
    readings = list(map(Reading, into, into.values()))
    adamw = torch.optim.AdamW(local.values(), lr=0.1)
    with (
        ParameterServer(ServerSettings(token=TOKEN)) as server,
        connected(server.address) as connection,
    ):
        for name, value in local.items():
            make(connection, name, value.clone())
        for number in range(STEPS):
            adamw.param_groups[0]["lr"] = 0.1 / (1 + number // 2)
            gradients = []
            for name, value in local.items():
                value.grad = torch.randn_like(value)
                gradients.append(updates.SentGradient(name, value.grad, 0))
            update = updates.step(optimizer_program(adamw), gradients)
            adamw.step()
            connection.call(and_read(update, following(readings), ()))
            assert all(map(torch.equal, into.values(), local.values()))
        joints = {server._state.store.get(name).joint for name in SHAPES}
        assert None not in joints
        assert len(joints) == 1
        assert server._state.shared.used


def test_what_is_deleted_makes_room_whatever_it_was_stepped_with() -> None:
    adam = torch.optim.Adam([torch.empty(0)])
    settings = ServerSettings(token=TOKEN, variable_bytes=1 << 22)
    with (
        ParameterServer(settings) as server,
        connected(server.address) as connection,
    ):
        for name, shape in SHAPES.items():
            make(connection, name, torch.zeros(shape))
        for _ in range(STEPS):
            ones = [updates.SentGradient(n, torch.ones(s), 0) for n, s in SHAPES.items()]
            connection.call(updates.step(optimizer_program(adam), ones))
        store = server._state.store
        mean = store.get("mean")
        assert mean.joint is not None
        before = mean.value.clone()
        connection.call(delete(["table", "dense"]))
        left = store.variables()
        assert store.memory_limit.used == sum(each.value.nbytes for each in left)
        assert mean.value.untyped_storage().nbytes() == mean.value.nbytes
        assert torch.equal(mean.value, before)
