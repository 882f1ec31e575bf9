"""Gradients in shared memory step small variables as one, and come to the same."""

from __future__ import annotations

import torch

from stratagem._servers import updates
from stratagem._servers.reading import Reading, following
from stratagem._servers.updates_and_reads import and_read
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.connections import connected, make
from tests.conftest import TOKEN
from tests.psserver.wire import optimizer_program

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
                gradients.append(updates.Gradient(name, value.grad, 0))
            update = updates.step(optimizer_program(adamw), gradients)
            adamw.step()
            connection.call(and_read(update, following(readings), ()))
            assert all(map(torch.equal, into.values(), local.values()))
        joints = {server._state.store.get(name).joint for name in SHAPES}
        assert None not in joints
        assert len(joints) == 1
        assert server._state.shared.used
