"""Servers that are stopped, and give their tasks to others before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.psserver.moves.servers import MovableServers, client_at, movable
from tests.psserver.persistence.servers import DURABILITIES

pytestmark = pytest.mark.unlogged

SECONDS = 20.0


def address_of(cluster: MovableServers, task: int, asked: int) -> str:
    return cluster.located(asked, task)[task].primary.address


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_server_that_is_stopped_gives_its_task_away(tmp_path: Path, durability: str) -> None:
    with movable(tmp_path, durability=durability) as cluster:
        with client_at(cluster.servers[0].address) as client:
            client.create(w=torch.arange(5.0))
        cluster.servers[0].stop(SECONDS)
        assert cluster.tasks(1) == [0, 1]
        with client_at(address_of(cluster, 0, 1), client) as again:
            (value,) = again.read("w")
        assert value.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_it_gives_all_tasks_to_those_that_have_the_least(tmp_path: Path) -> None:
    with movable(tmp_path, 4) as cluster:
        for number, size in enumerate((4, 3, 2, 1)):
            with client_at(cluster.servers[number].address) as client:
                client.create(w=torch.zeros(1000 * size))
        cluster.move(0, 1)
        cluster.servers[1].stop(SECONDS)
        # Task 0, the larger one, goes to server 3, and task 1 to server 2; server 0 has nothing.
        assert [cluster.tasks(number) for number in (2, 3)] == [[1, 2], [0, 3]]


def test_servers_that_stop_together_give_each_other_nothing(tmp_path: Path) -> None:
    with movable(tmp_path) as cluster:
        for server in cluster.servers.values():
            server.announce_stop()
        cluster.servers[1].stop(SECONDS)
        assert cluster.tasks(0) == [0]


def test_the_last_server_stops_with_what_it_has(tmp_path: Path) -> None:
    with movable(tmp_path, 1, durability="log") as cluster:
        with client_at(cluster.servers[0].address) as client:
            client.create(w=torch.ones(5))
        cluster.servers[0].stop(SECONDS)
        with client_at(cluster.start(0).address, client) as again:
            (value,) = again.read("w")
        assert value.tolist() == [1.0] * 5
