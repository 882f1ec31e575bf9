"""Servers that are killed while workers wait for one that was lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stratagem_proto.errors import UnstagedContributionError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_psserver.server import ParameterServer
from tests.psserver.persistence.servers import killed, logged
from tests.psserver.synchronous.contributors import mark
from tests.psserver.synchronous.workers import Worker, losing
from tests.waiting import eventually

SOON: dict[str, Any] = {"rejoin_seconds": 0.1, "reconnect_seconds": 0.4}
LATE: dict[str, Any] = {**SOON, "rejoin_seconds": 600.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir()
    return path


def test_who_was_told_that_a_worker_is_lost_is_told_so_after_a_kill(folder: Path) -> None:
    with logged(folder, **SOON) as server:
        first, _ = losing(server)
        eventually(lambda: not first.waits(server, 2))
        left = killed(folder)
    with logged(left, **LATE) as again:
        assert not first.waits(again, 2)
    # It has left an image.
    with logged(left, **LATE) as again:
        assert not first.waits(again, 2)


def test_a_worker_that_may_come_back_is_waited_for_after_a_kill(folder: Path) -> None:
    with logged(folder, **LATE) as server:
        first, _ = losing(server)
        left = killed(folder)
    with logged(left, **LATE) as again:
        assert first.waits(again, 2)
    with logged(left, **LATE) as again:
        assert first.waits(again, 2)
    with logged(left, **SOON) as again:
        eventually(lambda: not first.waits(again, 2))


def test_a_worker_that_comes_back_after_a_kill_is_not_lost_any_more(folder: Path) -> None:
    with logged(folder, **SOON) as server:
        first, second = losing(server)
        eventually(lambda: not first.waits(server, 2))
        left = killed(folder)
    with logged(left, **LATE) as again:
        second.contribute(again, 2, 30.0)
        assert first.values(again) == [-4.0, -4.0]
        first.contribute(again, 3, 0.0)
        second.lose(again)
        assert first.waits(again, 3)


async def need_memory(server: ParameterServer) -> None:
    server._state._reclaim()


async def waiting(server: ParameterServer) -> int:
    return len([*server._state.waits.waiters()])


def test_a_commit_that_waited_for_its_turn_repeats_what_became_of_it(folder: Path) -> None:
    with logged(folder, **LATE) as server, ThreadPoolExecutor() as threads:
        first, second = losing(server)
        second.stage(server, 2)
        with second.at(server) as client:
            client.sequence = client.open().last_sequence
            earlier = client.key()
            commit = pb.CommitContributionRequest(key=client.key(), step=mark(2), wait_seconds=30)
            commit.key.acknowledged = earlier.acknowledged
            committing = threads.submit(
                client.unary, "CommitContribution", commit, pb.CommitContributionResponse
            )
            eventually(lambda: server._loop.run(waiting(server)) == 1)
            for worker in (first, second):
                worker.lose(server)
            server._loop.run(need_memory(server))
            client.open()
            request = pb.CommitContributionRequest(key=earlier, step=mark(1))
            client.unary("CommitContribution", request, pb.CommitContributionResponse)
            with pytest.raises(UnstagedContributionError):
                committing.result()
        left = killed(folder)
    with logged(left, **LATE) as again:
        assert Worker(0).values(again) == [-2.0, -2.0]
