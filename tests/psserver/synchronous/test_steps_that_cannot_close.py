"""Steps that close without some workers, while too many workers wait at a barrier."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch

from stratagem_proto.errors import AbortedError, DeadlineExceededError
from stratagem_psserver.server import ParameterServer
from tests.psserver.persistence.servers import killed, logged
from tests.psserver.synchronous.contributors import Cluster, mark, session
from tests.psserver.synchronous.workers import Worker
from tests.psserver.wire import RawClient
from tests.waiting import eventually

WORKERS = 3
BARRIER = {1, 2}


def of_three() -> Cluster:
    return Cluster(num_workers=WORKERS, replicas_to_aggregate=2)


def test_a_worker_may_commit_once_enough_have_staged() -> None:
    cluster = of_three()
    cluster.stage(0)
    assert cluster.rounds.may_decide(session(0), mark(), {1}.__contains__) is None
    cluster.stage(1)
    assert cluster.rounds.may_decide(session(0), mark(), BARRIER.__contains__) is True


def test_a_step_cannot_close_while_too_many_are_elsewhere() -> None:
    cluster = of_three()
    cluster.stage(0)
    assert cluster.rounds.may_decide(session(0), mark(), BARRIER.__contains__) is False
    cluster.rounds.drop(session(0), mark())
    assert cluster.budget.used == 0
    assert cluster.rounds.is_late(session(0), mark())
    # It contributes to the same step again when the others are back.
    cluster.stage(0)
    cluster.stage(1)
    assert not cluster.rounds.is_late(session(0), mark())
    assert cluster.commit(1) == []
    assert [part.contribution.worker for part in cluster.commit(0)] == [0, 1]


def test_a_worker_that_is_gone_is_elsewhere_too() -> None:
    cluster = of_three()
    for worker in range(2):
        cluster.stage(worker)
    cluster.rounds.session_ended(session(1), "/job:worker/task:1 left")
    assert cluster.rounds.may_decide(session(0), mark(), set().__contains__) is None
    assert cluster.rounds.may_decide(session(0), mark(), {2}.__contains__) is False


def test_what_was_committed_counts_wherever_the_others_are() -> None:
    cluster = of_three()
    for worker in range(2):
        cluster.stage(worker)
    cluster.commit(0)
    cluster.rounds.session_ended(session(1), "/job:worker/task:1 left")
    assert cluster.rounds.may_decide(session(0), mark(), BARRIER.__contains__) is True


def test_too_few_workers_that_are_left_are_an_error() -> None:
    cluster = of_three()
    for worker in range(WORKERS):
        cluster.stage(worker)
    for worker in BARRIER:
        cluster.rounds.session_ended(session(worker), f"/job:worker/task:{worker} left")
    with pytest.raises(AbortedError, match="/job:worker/task:1 left before it contributed"):
        cluster.rounds.may_decide(session(0), mark(), BARRIER.__contains__)


@contextmanager
def waiting_at_a_barrier(
    server: ParameterServer, workers: list[Worker]
) -> Iterator[list[Future[None]]]:
    """Has workers wait at a barrier until one more comes."""
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor())
        meeting = [pool.submit(worker.meet, server) for worker in workers]
        eventually(lambda: server._loop.run(at_a_barrier(server)) == len(workers))
        yield meeting


async def at_a_barrier(server: ParameterServer) -> int:
    return len(server._state.waits.clients("barrier"))


def prepared(server: ParameterServer) -> list[Worker]:
    with RawClient(server.address, "") as client:
        client.open()
        client.create(v=torch.zeros(2))
    return [Worker(number, WORKERS) for number in range(WORKERS)]


def test_what_cannot_count_now_is_dropped_and_the_step_stays_open(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    with logged(folder) as server:
        slow, *fast = prepared(server)
        slow.stage(server, 1)
        with pytest.raises(DeadlineExceededError, match="the contributions of worker 1, worker 2"):
            slow.decide(server, 1, 0.1)
        with waiting_at_a_barrier(server, fast) as meeting:
            assert not slow.decide(server, 1, 30.0)
            slow.stage(server, 1)
            assert not slow.decide(server, 1, 30.0)
            slow.meet(server)
            for each in meeting:
                each.result()
        slow.stage(server, 1)
        left = killed(folder)
    for _ in ("log", "image"):
        with logged(left) as again:
            assert slow.values(again) == [0.0, 0.0]
    with logged(left) as again, ThreadPoolExecutor() as pool:
        deciding = pool.submit(slow.decide, again, 1, 30.0)
        fast[0].stage(again, 1)
        assert fast[0].decide(again, 1, 30.0)
        assert deciding.result()
        assert slow.values(again) == [-2.0, -2.0]
