"""Large results stay on a worker as long as it has room for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from stratagem._worker_client.link import WorkerLink
from stratagem._worker_client.wire import ClosureAnswer
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings
from tests.conftest import TOKEN
from tests.waiting import eventually
from tests.worker.links import PATIENCE, connected, loaded, payload_of

LARGE = 100_000
ROOM = 250_000
"""Bytes that two large results fit into, and not three."""


@pytest.fixture
def worker() -> Iterator[WorkerServer]:
    with WorkerServer(WorkerSettings(token=TOKEN, result_bytes=ROOM)) as worker:
        yield worker


def made(link: WorkerLink, closure: int) -> ClosureAnswer:
    """How a function ended that returns something large."""
    payload = payload_of(lambda: torch.full((LARGE,), 7, dtype=torch.uint8))
    run = link.run(closure, payload, use=pb.RESULT_USE_LARGE_STAYS)
    return run.result(PATIENCE)


def test_what_there_is_no_room_for_is_sent(worker: WorkerServer) -> None:
    with connected(worker) as link:
        first, second, third = (made(link, number) for number in (1, 2, 3))
        assert first.staying_bytes > LARGE
        assert second.staying_bytes > LARGE
        assert third.staying_bytes == 0
        assert loaded(third.payload).sum() == 7 * LARGE
        assert loaded(link.send_back(1).result(PATIENCE).payload)[0] == 7


def test_what_was_released_makes_room(worker: WorkerServer) -> None:
    with connected(worker) as link:
        assert [bool(made(link, n).staying_bytes) for n in (1, 2, 3)] == [1, 1, 0]
        link.release((), [1])
        # The loop of the worker releases it before it lets another one run.
        assert [bool(made(link, n).staying_bytes) for n in (4, 5)] == [1, 0]


def test_sessions_share_the_room_and_give_it_back(worker: WorkerServer) -> None:
    numbers = iter(range(1, 1000))
    with connected(worker) as other:
        with connected(worker) as link:
            assert made(link, 1).staying_bytes
            assert made(other, next(numbers)).staying_bytes
            assert not made(other, next(numbers)).staying_bytes
        eventually(lambda: bool(made(other, next(numbers)).staying_bytes))


def test_without_room_all_is_sent() -> None:
    settings = WorkerSettings(token=TOKEN, result_bytes=0)
    with WorkerServer(settings) as worker, connected(worker) as link:
        assert loaded(made(link, 1).payload).sum() == 7 * LARGE
