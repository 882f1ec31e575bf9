"""Servers that load the image of a large task, and have others to serve meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from stratagem_proto.errors import DeadlineExceededError
from stratagem_proto.v1.replication_pb2 import View
from stratagem_psserver.persistence.images import Throttle
from stratagem_psserver.replication import standby
from tests.psserver.moves.servers import MovableServers, client_at, movable
from tests.psserver.persistence.servers import DURABILITIES
from tests.psserver.replication.held_images import HeldImages, held_images
from tests.psserver.wire import LARGE, RawClient, sgd
from tests.waiting import eventually

pytestmark = pytest.mark.unlogged


@contextmanager
def moving(
    cluster: MovableServers, client: RawClient, seconds: float = 60.0
) -> Iterator[tuple[HeldImages, Future[View]]]:
    """Moves a large task to server 1, which does not finish to load its image in the context."""
    client.create(w=torch.zeros(5), big=torch.ones(2 * LARGE))
    with ThreadPoolExecutor(1) as threads, held_images() as held:
        move = threads.submit(cluster.move, 0, 1, seconds)
        held.await_loading()
        yield held, move


@contextmanager
def served(folder: Path, durability: str) -> Iterator[tuple[MovableServers, RawClient]]:
    """Starts two servers, and opens a session at the first one."""
    with (
        movable(folder, durability=durability) as cluster,
        client_at(cluster.servers[0].address) as client,
    ):
        yield cluster, client


def stepped(client: RawClient) -> list[float]:
    """Take a step, and return the values after it."""
    client.update(sgd(), {"w": torch.full((5,), -1.0)})
    (value,) = client.read("w")
    return value.tolist()


@pytest.mark.parametrize("durability", DURABILITIES)
def test_it_answers_clients_of_its_own_task(tmp_path: Path, durability: str) -> None:
    with movable(tmp_path, durability=durability) as cluster:
        home, other = (cluster.servers[number].address for number in range(2))
        with client_at(home) as client, client_at(other) as its:
            its.create(w=torch.zeros(5))
            with moving(cluster, client) as (_, move):
                for step in range(1, 4):
                    assert stepped(its) == [step] * 5
                its.heartbeat()
                assert cluster.tasks(1) == [1]
                assert not move.done()
        assert move.result().primary.index == 1


@pytest.mark.parametrize("durability", DURABILITIES)
def test_steps_that_are_taken_meanwhile_come_along(tmp_path: Path, durability: str) -> None:
    with served(tmp_path, durability) as (cluster, client):
        with moving(cluster, client) as (_, move):
            for step in range(1, 4):
                assert stepped(client) == [step] * 5
            assert cluster.tasks(0) == [0]
        with client_at(move.result().primary.address, client) as again:
            assert stepped(again) == [4.0] * 5


@pytest.mark.full("moves that are given up are in test_moves.py")
@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_move_that_takes_too_long_is_given_up_meanwhile(tmp_path: Path, durability: str) -> None:
    with served(tmp_path, durability) as (cluster, client):
        with moving(cluster, client, seconds=0.5) as (_, move):
            with pytest.raises(DeadlineExceededError):
                move.result()
            assert stepped(client) == [1.0] * 5
        view = cluster.move(0, 1)
        with client_at(view.primary.address, client) as again:
            assert stepped(again) == [2.0] * 5


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_server_that_is_stopped_meanwhile_leaves_the_task(
    tmp_path: Path, durability: str
) -> None:
    with served(tmp_path, durability) as (cluster, client):
        with moving(cluster, client) as (held, _), ThreadPoolExecutor(1) as threads:
            stopping = threads.submit(cluster.servers[1].stop, 0)
            eventually(lambda: not has_follower(cluster))
            held.release()
            stopping.result()
        assert stepped(client) == [1.0] * 5
        cluster.start(1)
        assert cluster.move(0, 1).primary.index == 1


@pytest.fixture
def endless_rests(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Has servers rest for days while they load at a pace; the event is set once one does."""
    resting = threading.Event()

    def days(nbytes: int) -> float:
        resting.set()
        return 1e6

    monkeypatch.setattr(standby, "Throttle", lambda _, hurries: Throttle(days, hurries))
    return resting


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_server_that_rests_answers_and_is_stopped_at_once(
    tmp_path: Path, durability: str, endless_rests: threading.Event
) -> None:
    with served(tmp_path, durability) as (cluster, client), ThreadPoolExecutor(1) as threads:
        client.create(w=torch.zeros(5))
        threads.submit(cluster.move, 0, 1, bytes_per_second=1 << 40)
        assert endless_rests.wait(20.0)
        assert stepped(client) == [1.0] * 5
        assert cluster.tasks(1) == [1]
        cluster.servers[1].stop(grace=0)
        assert stepped(client) == [2.0] * 5


def test_a_move_at_a_pace_that_takes_too_long_can_be_made_again(
    tmp_path: Path, endless_rests: threading.Event
) -> None:
    with served(tmp_path, "none") as (cluster, client):
        client.create(w=torch.zeros(5))
        with pytest.raises(DeadlineExceededError):
            cluster.move(0, 1, 0.5, bytes_per_second=1 << 40)
        assert endless_rests.is_set()
        view = cluster.move(0, 1)
        with client_at(view.primary.address, client) as again:
            assert stepped(again) == [1.0] * 5


def has_follower(cluster: MovableServers) -> bool:
    """Whether somebody follows server 0."""
    replicated = cluster.servers[0].replicated
    primary = replicated._require_task()._primary
    return primary is not None and primary._link is not None
