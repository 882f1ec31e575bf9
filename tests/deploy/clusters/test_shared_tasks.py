"""Clusters that begin with more tasks than servers."""

from __future__ import annotations

import pytest
import torch

from stratagem import ParameterServerStrategy, Variable
from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster
from stratagem_proto.errors import InvalidArgumentError

pytestmark = pytest.mark.unlogged


def test_a_server_that_is_added_gets_some_of_the_tasks_that_others_share() -> None:
    def train(resolver: ClusterResolver) -> list[int]:
        with ParameterServerStrategy(resolver) as strategy:
            with strategy.scope():
                made = [Variable(torch.tensor(0), False, name=f"c{i}") for i in range(4)]
            found = strategy.servers.report()
            tasks = {each.number: [task.task for task in each.tasks] for each in found}
            assert tasks == {0: [0, 2], 1: [1, 3]}
            for each in made:
                each.assign_add(1)
            moves = strategy.servers.add(cluster.add_server())
            assert moves and {move.target for move in moves} == {2}
            for each in made:
                each.assign_add(1)
            return [int(each.numpy()) for each in made]

    with LocalCluster(ps=2, tasks=4, movable=True) as cluster:
        assert cluster.run(train) == [[2, 2, 2, 2]]


@pytest.mark.cluster
def test_servers_with_certificates_share_tasks() -> None:
    with LocalCluster(ps=2, tasks=5, movable=True, processes=True, tls=True) as cluster:
        assert cluster.run(count_up) == [[2] * 5]


def count_up(resolver: ClusterResolver) -> list[int]:
    with ParameterServerStrategy(resolver) as strategy:
        with strategy.scope():
            made = [Variable(torch.tensor(0), False, name=f"c{i}") for i in range(5)]
        for each in made:
            each.assign_add(1)
        strategy.servers.drain(0)
        for each in made:
            each.assign_add(1)
    # Who comes later finds all of them with the other server.
    with ParameterServerStrategy(resolver) as strategy, strategy.scope():
        made = [Variable(torch.tensor(0), False, name=f"c{i}") for i in range(5)]
        return [int(each.numpy()) for each in made]


def test_tasks_are_shared_only_where_they_can_move() -> None:
    with pytest.raises(InvalidArgumentError, match="only where they can move"):
        LocalCluster(ps=2, tasks=4)
