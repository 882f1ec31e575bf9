"""Parameters after a refresh that failed on one of the servers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stratagem import VariableNotFoundError
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._ps_client.requests.reads import Reading, read
from stratagem._ps_client.requests.variables import Writing, assign, delete
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_SET
from tests.client.clusters import running


def test_values_that_came_are_not_taken_for_the_users_writing() -> None:
    with running(num_servers=2) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            model = nn.Linear(2, 3)
        assert isinstance(strategy.extended, ParameterServerExtended)
        servers = strategy.extended._store.servers

        def others_write(value: float) -> None:
            filled = torch.full((3, 2), value)
            servers.call(0, assign([Writing("weight", ASSIGN_MODE_SET, filled)]))

        others_write(1.0)
        servers.call(1, delete(["bias"]))
        with pytest.raises(VariableNotFoundError):
            strategy.refresh()
        assert model.weight[0, 0] == 1.0
        others_write(2.0)
        with pytest.raises(VariableNotFoundError):
            strategy.refresh()
        found = torch.empty(3, 2)
        servers.call(0, read([Reading("weight", found)]))
        assert torch.equal(found, torch.full((3, 2), 2.0))
